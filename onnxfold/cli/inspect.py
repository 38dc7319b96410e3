"""`onnxfold inspect`: what a model holds, and what is different in another one."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import PATH, output_options, sizes
from onnxfold.cli.output import write, write_json


@click.command()
@click.argument("model", type=PATH)
@click.argument("other", type=PATH, required=False)
@click.option("--tree", is_flag=True, help="Show its modules: nodes, weights, MACs, FLOPs, work.")
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="How deep to go with --tree.  [default: as deep as 40 rows allow]",
)
@sizes("--dim", "dims", help="Size of a dynamic dimension with --tree, by default 64")
@output_options
def inspect(
    model: str,
    other: str | None,
    tree: bool,
    depth: int | None,
    dims: dict[str, int],
    as_json: bool,
) -> None:
    """Show ops, inputs, outputs, opsets, parameters, bytes and largest tensors.

    With OTHER, show the differences: ops, interface, opsets, and tensors by name and content. With
    --tree, show parameters, multiply-accumulates (MACs) and floating point operations (FLOPs) of
    the model and of each of its modules.
    """
    if tree and other is not None:
        raise click.UsageError("--tree is about one model")
    if depth is not None and not tree:
        raise click.UsageError("--depth goes with --tree")
    if dims and not tree:
        raise click.UsageError("--dim goes with --tree")
    if tree:
        from onnxfold.report.module_tree import take_modules

        modules = take_modules(model, dims)
        write_json(modules.to_dict()) if as_json else write(modules.to_text(depth))
    elif other is not None:
        from onnxfold.report.difference import take_difference

        difference = take_difference(model, other)
        write_json(difference.to_dict()) if as_json else write(difference.to_text())
    else:
        from onnxfold.report.inventory import take_inventory

        inventory = take_inventory(model)
        write_json(inventory.to_dict()) if as_json else write(inventory.to_text())
