"""`onnxfold explain`: why nodes fold or stay."""

from __future__ import annotations

import fnmatch
from typing import Any

import click

from onnxfold.cli.arguments import LEVEL, PATH, output_options, several, what_is_folded
from onnxfold.cli.output import write, write_json
from onnxfold.errors import UsageError


@click.command()
@click.argument("model", type=PATH)
@several("--value", "values", metavar="GLOB", help="Only values or nodes whose name matches")
@click.option(
    "--why",
    "node",
    metavar="NODE",
    help="Explain one node, given by its name or by a value that it makes.",
)
@LEVEL
@what_is_folded
@output_options
def explain(
    model: str, values: tuple[str, ...], node: str | None, as_json: bool, **options: Any
) -> None:
    """Show why nodes with constant inputs would be folded or stay.

    "if folded" is the size of the result in the file, "if kept" that of operands which only this
    node reads. --why explains any node: the path to the inputs on which it depends.
    """
    if node is not None and values:
        raise click.UsageError("--why explains one node; leave out --value")
    import onnxfold
    from onnxfold.report.explanations import Decisions

    answer: Any
    if node is not None:
        answer = onnxfold.why(model, node, **options)
    else:
        answer = Decisions(
            d
            for d in onnxfold.explain(model, **options)
            if not values
            or any(fnmatch.fnmatchcase(name, glob) for name in (d.value, d.node) for glob in values)
        )
        if values and not answer:
            names = " ".join(map(repr, values))
            raise UsageError(
                f"no constant node matches {names}; --why explains any node", file=model
            )
    if as_json:
        write_json({"model": model, **answer.to_dict()})
    else:
        write(answer.to_text())
