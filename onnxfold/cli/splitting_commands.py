"""`onnxfold split` and `adapters`: runtime constants."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    FOLDER,
    LEVEL,
    PATH,
    QUIET,
    REPORT,
    flag,
    option,
    output_options,
    runtime_options,
)
from onnxfold.cli.output import (
    EXIT_DIFFERENT,
    EXIT_ERROR,
    EXIT_OK,
    show,
    watched,
    write,
    write_json,
)
from onnxfold.errors import about


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=FOLDER, metavar="DIR", help="Folder to write.")
@runtime_options
@option("--fold-at", default="compile")
@option("--nominal")
@flag("--strict-backend", help="Write nothing unless the backend compiles all of runtime_fold.")
@option("--compile-seconds", default=120.0, metavar="S")
@option("--dump-ir", metavar="DIR")
@LEVEL
@REPORT
@flag("--no-fsync", help="Do not wait for the disk.")
@QUIET
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
    from onnxfold.runtime.split_model import split as split_file

    if report is not None:
        from onnxfold.report.page.documents import check_destination, write_split_page

        check_destination(report, source)
    constants = options["runtime_constants"] or options["overridable"]
    if not constants and options["fold_at"] != "runtime":
        with about(source):
            if not recorded(storage.load(source)):
                return _list_candidates(source, output, options, as_json)
    if output is None:
        raise click.UsageError("no output: give -o DIR")
    with about(source):
        bundle = watched(*(split_file, source, output), quiet=quiet, fsync=not no_fsync, **options)
    if report is not None:
        write_split_page(bundle, source, report)
    show(bundle, as_json, quiet, verbose=True)
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


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("files", metavar="ADAPTER...", type=PATH, nargs=-1, required=True)
@output_options
def adapters(bundle: str, files: tuple[str, ...], as_json: bool) -> int:
    """Show which runtime constants of a bundle the tensors of adapters are.

    An ADAPTER is peft's folder, or a .safetensors, .npz or .onnx_adapter file.

    Exit code 0: all tensors fit; 1: some do not; 2: bad input.
    """
    from onnxfold.adapter_files import read_adapter
    from onnxfold.runtime.adapter_matching import fits
    from onnxfold.runtime.bundles.bundle import open_bundle

    manifest = open_bundle(bundle).manifest
    found = {file: fits(read_adapter(file), manifest) for file in files}
    if as_json:
        write_json({file: [vars(fit) for fit in each] for file, each in found.items()})
    else:
        from onnxfold.report.runtime_tables import adapters_text
        from onnxfold.tables import render

        write(render(*adapters_text(manifest, found)))
    fit_all = all(fit.problem is None for each in found.values() for fit in each)
    return EXIT_OK if fit_all else EXIT_DIFFERENT
