"""`onnxfold inspect`: what a model holds, and how two models differ."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import PATH, output_options, sizes
from onnxfold.cli.output import show


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
    for option, is_given in (("--depth", depth is not None), ("--dim", bool(dims))):
        if is_given and not tree:
            raise click.UsageError(f"{option} goes with --tree")
    if tree:
        from onnxfold.report.module_tree import take_modules

        show(take_modules(model, dims), as_json, depth=depth)
    elif other is not None:
        from onnxfold.report.difference import take_difference

        show(take_difference(model, other), as_json)
    else:
        from onnxfold.report.inventory import take_inventory

        show(take_inventory(model), as_json)
