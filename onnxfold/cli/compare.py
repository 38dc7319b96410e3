"""`onnxfold compare`: whether two models compute the same."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    PATH,
    PROVIDERS,
    REPORT,
    comparison_options,
    number,
    output_options,
    sizes,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, show


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@number(
    *("--seeds", click.IntRange(1), 1),
    "Random inputs to compare on; each has other sizes of dynamic dimensions.",
)
@sizes(
    "--dim",
    "dims",
    help="Size of a dynamic dimension, by default found by trying; x[2] names an unnamed "
    "dimension: axis 2 of input x",
)
@comparison_options
@click.option("--exact", is_flag=True, help="Allow half precision no difference either.")
@PROVIDERS
@REPORT
@click.option(
    "--bisect",
    is_flag=True,
    help="Where outputs differ, find the first internal value that differs.",
)
@output_options
def compare(a: str, b: str, report: str | None, as_json: bool, **options: Any) -> int:
    """Run two models on the same inputs and compare their outputs.

    Exit code 0: the same bit for bit, or within the tolerance; 1: different; 2: bad input.
    """
    from onnxfold.comparison import compare as compare_models

    if report is not None:
        from onnxfold.report.page import check_destination, write_compare_page

        check_destination(report, a, b)
    given = {name: value for name, value in options.items() if value is not None}
    result = compare_models(a, b, **given)
    if report is not None:
        write_compare_page(result, report)
    show(result, as_json)
    return EXIT_OK if result.passed else EXIT_DIFFERENT
