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
from onnxfold.cli.output import write, write_json
from onnxfold.errors import about


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=FOLDER, metavar="DIR", required=True, help="Folder to write.")
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
    output: str,
    report: str | None,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Split a model into a part that runs once and a part for each run.

    The first part depends only on runtime constants: inputs that stay the same over many runs.

    Writes entry.onnx, runtime_fold.onnx, manifest.json and compiled kernels into DIR.
    """
    from onnxfold.report.console import LateProgress
    from onnxfold.runtime.split_model import split as split_file

    if report is not None:
        from onnxfold.report.page import check_destination, write_split_page

        check_destination(report, source)
    with LateProgress(enabled=not quiet) as progress, about(source):
        bundle = split_file(source, output, fsync=not no_fsync, progress=progress, **options)
    if report is not None:
        write_split_page(bundle, source, report)
    if as_json:
        write_json(bundle.manifest.to_dict())
    elif not quiet:
        from onnxfold.report.runtime_tables import split_text

        write(split_text(bundle))
