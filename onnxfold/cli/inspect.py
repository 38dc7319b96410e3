"""`onnxfold inspect`: what a model holds."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import output_options
from onnxfold.cli.output import write, write_json


@click.command()
@click.argument("model")
@output_options
def inspect(model: str, as_json: bool) -> None:
    """Show ops, interface, opsets, bytes and largest tensors of MODEL."""
    from onnxfold.report.inventory import take_inventory

    inventory = take_inventory(model)
    if as_json:
        write_json(inventory.to_dict())
    else:
        from onnxfold.report.inspect_table import inspect_text

        write(inspect_text(inventory))
