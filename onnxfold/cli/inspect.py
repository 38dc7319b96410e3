"""`onnxfold inspect`: what a model holds, and what is different in another one."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import PATH, output_options
from onnxfold.cli.output import write, write_json


@click.command()
@click.argument("model", type=PATH)
@click.argument("other", type=PATH, required=False)
@click.option("--tree", is_flag=True, help="Show its modules, with nodes, weights and work.")
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="How deep to go with --tree.  [default: as deep as 40 rows allow]",
)
@output_options
def inspect(model: str, other: str | None, tree: bool, depth: int | None, as_json: bool) -> None:
    """Show ops, interface, opsets, bytes and largest tensors of MODEL.

    With OTHER, what is different in it: ops, interface, opsets, and tensors by name and content.
    """
    if tree and other is not None:
        raise click.UsageError("--tree is about one model")
    if depth is not None and not tree:
        raise click.UsageError("--depth goes with --tree")
    if tree:
        _tree(model, depth, as_json)
    elif other is not None:
        _difference(model, other, as_json)
    else:
        _inventory(model, as_json)


def _inventory(model: str, as_json: bool) -> None:
    from onnxfold.report.inventory import take_inventory

    inventory = take_inventory(model)
    if as_json:
        write_json(inventory.to_dict())
        return
    from onnxfold.report.inspect_table import inspect_text

    write(inspect_text(inventory))


def _tree(model: str, depth: int | None, as_json: bool) -> None:
    from onnxfold.report.module_tree import take_modules

    modules = take_modules(model)
    if as_json:
        write_json(modules.to_dict())
        return
    from onnxfold.report.module_table import module_text

    write(module_text(modules, depth))


def _difference(model: str, other: str, as_json: bool) -> None:
    from onnxfold.report.difference import take_difference

    difference = take_difference(model, other)
    if as_json:
        write_json(difference.to_dict())
        return
    from onnxfold.report.difference_table import difference_text

    write(difference_text(difference))
