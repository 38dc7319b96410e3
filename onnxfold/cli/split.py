"""`onnxfold split` and `adapters`: what runs once, and what it is given."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    FOLDER,
    LEVEL,
    PATH,
    REPORT,
    output_options,
    runtime_options,
    sizes,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, write, write_json
from onnxfold.errors import about


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=FOLDER, metavar="DIR", required=True, help="Folder to write.")
@runtime_options
@click.option(
    "--fold-at",
    type=click.Choice(["compile", "runtime"]),
    default="compile",
    show_default=True,
    help="compile: fold constants now; runtime: leave them to runtime_fold, for a smaller bundle.",
)
@sizes("--nominal", help="Assumed size of a symbolic dimension, for the cut and for timing kernels")
@click.option(
    "--strict-backend",
    is_flag=True,
    help="Write nothing unless the backend compiles all of runtime_fold.",
)
@click.option(
    "--compile-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Time limit of one compilation.",
)
@click.option(
    "--dump-ir",
    type=PATH,
    metavar="DIR",
    help="Write both parts as .dot and the stages of the compilation of runtime_fold.",
)
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
    from onnxfold.runtime.split import split as split_file

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


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("files", metavar="ADAPTER...", type=PATH, nargs=-1, required=True)
@output_options
def adapters(bundle: str, files: tuple[str, ...], as_json: bool) -> int:
    """Show which runtime constants of a bundle the tensors of adapters are.

    An ADAPTER is peft's folder, or a .safetensors, .npz or .onnx_adapter file.

    Exit code 0: all tensors fit; 1: some do not; 2: bad input.
    """
    from onnxfold.runtime.adapters import fits, read_adapter
    from onnxfold.runtime.bundles.bundle import open_bundle

    manifest = open_bundle(bundle).manifest
    found = {file: fits(read_adapter(file), manifest) for file in files}
    if as_json:
        write_json({file: [vars(fit) for fit in each] for file, each in found.items()})
    else:
        from onnxfold.report.runtime_tables import adapters_text

        write(adapters_text(manifest, found))
    fit_all = all(fit.problem is None for each in found.values() for fit in each)
    return EXIT_OK if fit_all else EXIT_DIFFERENT
