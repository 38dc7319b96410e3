"""`onnxfold compare`: do two models compute the same?"""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import FEEDS, PATH, REPORT, dimension, output_options
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, write, write_json


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Random inputs to compare on; each has other sizes of dynamic dimensions.",
)
@FEEDS
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a symbolic dimension; may be repeated.",
)
@click.option("--rtol", type=click.FloatRange(min=0), default=0.0, help="Relative tolerance.")
@click.option("--atol", type=click.FloatRange(min=0), default=0.0, help="Absolute tolerance.")
@click.option(
    "--ulp", type=click.IntRange(min=0), default=0, help="Units in the last place to allow."
)
@click.option("--exact", is_flag=True, help="Allow half precision no difference either.")
@REPORT
@click.option(
    "--bisect", is_flag=True, help="Where outputs differ, find the first value within that does."
)
@output_options
def compare(
    a: str,
    b: str,
    dims: tuple[tuple[str, int], ...],
    report: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare what models A and B compute.

    Exit code 0: the same bit for bit, or within the tolerance; 1: different; 2: bad input.
    """
    from onnxfold.compare import compare as compare_models

    if report is not None:
        from onnxfold.report.page import check_destination, write_compare_page

        check_destination(report, a, b)
    result = compare_models(a, b, dims=dict(dims), **options)
    if report is not None:
        write_compare_page(result, report)
    if as_json:
        write_json(result.to_dict())
    else:
        from onnxfold.report.compare_table import compare_text

        write(compare_text(result))
    return EXIT_OK if result.passed else EXIT_DIFFERENT
