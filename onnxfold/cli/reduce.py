"""`onnxfold reduce`: a smaller model that shows the same failure."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import PATH, SectionedCommand, number, optimization_options, section
from onnxfold.cli.output import show


@click.command(
    cls=SectionedCommand,
    epilog="Example: onnxfold reduce model.onnx -o small.onnx -- python fails.py {}",
)
@click.argument("source", metavar="MODEL", type=PATH)
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@section(
    "Failure",
    click.option("-o", "--output", type=PATH, metavar="OUT", required=True, help="File to write."),
    number(
        *("--timeout", click.FloatRange(0, min_open=True), 60.0),
        "Seconds after which a run counts as one that does not end.",
    ),
)
@optimization_options
def reduce(source: str, output: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write a smaller model that shows the same failure as MODEL, for a report of it.

    Without COMMAND, MODEL runs in a default session of onnxruntime, is optimized with the options
    given, and the result is compared with it. What fails is an error, a difference beyond the
    tolerance, a crash or a timeout. COMMAND fails by its exit code or timeout; {} is replaced by
    the path of a model. Nodes, inputs and weights are removed as long as the failure stays the
    same. The exit code is 2 if MODEL shows none.
    """
    import onnxfold
    from onnxfold.report.console import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        done = onnxfold.reduce(source, output, progress=progress, **options)
    if as_json or not quiet:
        show(done, as_json)
