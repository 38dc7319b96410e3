"""`onnxfold split`: what runs once is split from what runs each time."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    FOLDER,
    LEVEL,
    PATH,
    REPORT,
    option,
    output_options,
    runtime_options,
)
from onnxfold.cli.output import EXIT_ERROR, EXIT_OK, show, write
from onnxfold.errors import about


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=FOLDER, metavar="DIR", help="Folder to write.")
@runtime_options
@option("--fold-at", default="compile")
@option("--nominal")
@click.option(
    "--strict-backend",
    is_flag=True,
    help="Write nothing unless the backend compiles all of runtime_fold.",
)
@option("--compile-seconds", default=120.0, metavar="S")
@option("--dump-ir", metavar="DIR")
@LEVEL
@REPORT
@click.option("--no-fsync", is_flag=True, help="Do not wait for the disk.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@output_options
def split(
    source: str,
    output: str | None,
    report: str | None,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Split a model into a part that runs once and a part for each run.

    The first part depends only on runtime constants: inputs that stay the same over many runs.

    Writes entry.onnx, runtime_fold.onnx, manifest.json and compiled kernels into DIR. Without
    --runtime-const and --overridable, lists the inputs that are worth holding constant, each alone
    and the best pair: the nodes that would run once, their share of the work, and the bytes
    cached, at nominal sizes. Nothing is written then, and the exit code is 2.
    """
    from onnxfold import storage
    from onnxfold.analysis.constness import recorded
    from onnxfold.report.console import LateProgress
    from onnxfold.runtime.split_model import split as split_file

    if report is not None:
        from onnxfold.report.page import check_destination, write_split_page

        check_destination(report, source)
    constants = options["runtime_constants"] or options["overridable"]
    if not constants and options["fold_at"] != "runtime":
        with about(source):
            if not recorded(storage.load(source)):
                return _list_candidates(source, output, options, as_json)
    if output is None:
        raise click.UsageError("no output: give -o DIR")
    with LateProgress(enabled=not quiet) as progress, about(source):
        bundle = split_file(source, output, fsync=not no_fsync, progress=progress, **options)
    if report is not None:
        write_split_page(bundle, source, report)
    if as_json or not quiet:
        show(bundle, as_json, verbose=True)
    return EXIT_OK


def _list_candidates(
    source: str, output: str | None, options: dict[str, Any], as_json: bool
) -> int:
    from onnxfold.runtime.backends.base import check_name
    from onnxfold.runtime.split_model import candidates

    own = {**options}
    backend, strict = own.pop("backend"), own.pop("strict_backend")
    check_name(backend, own["backend_options"], strict)
    found = candidates(source, **own)
    show(found, as_json)
    if not as_json and (found.found or found.pair):
        rest = f"--runtime-const NAME -o {output or 'DIR'}"
        write("nothing was written; name what stays the same over many runs:\n")
        write(f"onnxfold split {source} {rest}\n")
    return EXIT_ERROR
