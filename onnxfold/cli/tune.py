"""`onnxfold tune`: write the fastest result, by measurement."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import PATH, number, output_options, sizes
from onnxfold.cli.output import show


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="OUT", required=True, help="File to write.")
@sizes("--dim", "dims", help="Size of a dynamic dimension, by default 1 for a batch, 16, or others")
@number("--threads", click.IntRange(0), 0, "Threads; 0: all.")
@number(
    *("--seconds", click.FloatRange(0), 30.0),
    "Budget; at least 9 runs of each candidate are measured.",
)
@number(
    *("--check", click.IntRange(1), 1),
    "Random inputs on which each candidate is compared with IN.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@output_options
def tune(source: str, output: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the fastest result of IN on this machine, by measurement, to OUT.

    Candidates are IN itself, -O1, -O2, -O2 --target onnxruntime, and -O1 and -O2 with --value-info.
    Each is compared with IN. Beyond -O1, which keeps every bit, a candidate must be faster by more
    than the spread of the runs than those before it. The result never measured slower than IN.
    """
    import onnxfold
    from onnxfold.report.console import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        done = onnxfold.tune(source, output, progress=progress, **options)
    if as_json or not quiet:
        show(done, as_json)
