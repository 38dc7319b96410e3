"""`onnxfold batch`: fold the constants of many models."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    FOLDER,
    PATH,
    SectionedCommand,
    is_verbose,
    number,
    optimization_options,
    size_in_bytes,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_ERROR, EXIT_OK, show


@click.command(cls=SectionedCommand)
@click.argument("sources", metavar="MODEL...", type=PATH, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    metavar="DIR",
    required=True,
    help="Folder or URL for the results; they keep their paths below MODEL.",
)
@number(
    *("--workers", click.IntRange(1), None),
    "Models at a time on this machine.  [default: number of processors]",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Run on a dask cluster instead: tcp://host:8786."
)
@click.option(
    "--memory",
    type=size_in_bytes,
    metavar="BYTES",
    help="Memory for all models in progress; others wait.  [default: free memory]",
)
@number("--timeout", click.FloatRange(0), None, "Time limit for each model.")
@click.option(
    "--plan", "only_plan", is_flag=True, help="Only predict memory; write nothing into DIR."
)
@click.option(
    "--journal",
    type=PATH,
    metavar="FILE",
    help="File of results, one JSON document per line.  [default: DIR/onnxfold-batch.jsonl]",
)
@optimization_options
def batch(sources: tuple[str, ...], output: str, quiet: bool, as_json: bool, **options: Any) -> int:
    """Optimize many models in parallel.

    MODEL is a file, a folder, a pattern such as 'exports/**/*.onnx', or a URL. Files in DIR are
    results and never sources.

    A failed model is reported and does not stop the batch. Models finished by an earlier batch
    with the same options are skipped, so an interrupted batch resumes. The exit code is 0 if all
    models have a result, 1 if results are missing only because --check found a difference, 2
    otherwise.
    """
    from onnxfold.batches import batch as optimize_all
    from onnxfold.report.console import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        done = optimize_all(sources, output, progress=progress, **options)
    if as_json or not quiet:
        show(done, as_json, verbose=is_verbose())
    if not done.failed:
        return EXIT_OK
    return EXIT_DIFFERENT if all(o.differs for o in done.failed) else EXIT_ERROR
