"""`onnxfold bench`: what splitting gains."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    BACKEND,
    BACKEND_OPTIONS,
    MAX_CACHE,
    OVERRIDABLE,
    RUNTIME_CONSTANTS,
    dimension,
    output_options,
)
from onnxfold.cli.output import write, write_json


@click.command()
@click.argument("source", metavar="BUNDLE|MODEL")
@RUNTIME_CONSTANTS
@OVERRIDABLE
@MAX_CACHE
@click.option("--original", metavar="MODEL", help="What BUNDLE was made of, to compare with.")
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a symbolic dimension; may be repeated.  [default: 1 for a batch, 16]",
)
@BACKEND
@BACKEND_OPTIONS
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, metavar="N")
@click.option("--threads", type=click.IntRange(min=0), default=1, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@output_options
def bench(
    source: str,
    dims: tuple[tuple[str, int], ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Time BUNDLE, or MODEL split on the way, against the original, run by run in turns."""
    from onnxfold.runtime.bench import bench as run_bench

    result = run_bench(source, dims=dict(dims), **options)
    if as_json:
        write_json(result.to_dict())
    else:
        from onnxfold.report.split_table import bench_text

        write(bench_text(result))
