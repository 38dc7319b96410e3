"""`onnxfold compare`, `inspect`, `explain` and `bench`: what models compute, hold and take."""

from __future__ import annotations

import fnmatch
from typing import Any

import click

from onnxfold.cli.arguments import (
    LEVEL,
    PATH,
    REPORT,
    comparison_options,
    completed,
    output_options,
    runtime_options,
    several,
    sizes,
)
from onnxfold.cli.folding import what_is_folded
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, show, write, write_json
from onnxfold.errors import UsageError

PROVIDERS = several(
    "--provider",
    "providers",
    metavar="NAME",
    shell_complete=completed("onnxruntime:get_available_providers"),
    help="Execution provider of onnxruntime, by default CPUExecutionProvider",
)


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
    "--bisect", is_flag=True, help="Where outputs differ, find the first value within that does."
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
    node reads. --why explains any node: the path to the inputs on which it depends, and what each
    run would save if they were runtime constants.
    """
    if node is not None and values:
        raise click.UsageError("--why explains one node; leave out --value")
    import onnxfold
    from onnxfold.report.explain import explain_text, why_text

    if node is not None:
        answer = onnxfold.why(model, node, **options)
        document, text = answer.to_dict(), why_text(answer)
    else:
        decisions = [
            d
            for d in onnxfold.explain(model, **options)
            if not values
            or any(fnmatch.fnmatchcase(name, glob) for name in (d.value, d.node) for glob in values)
        ]
        if values and not decisions:
            names = " ".join(map(repr, values))
            raise UsageError(
                f"no constant node matches {names}; --why explains any node", file=model
            )
        document, text = {"decisions": [d.to_dict() for d in decisions]}, explain_text(decisions)
    if as_json:
        write_json({"model": model, **document})
    else:
        write(text)


@click.command()
@click.argument("sources", metavar="MODEL [MODEL|BUNDLE]...", type=PATH, nargs=-1, required=True)
@comparison_options
@sizes("--dim", "dims", help="Size of a dynamic dimension, by default 1 for a batch, 16, or others")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Timed runs of each model.",
)
@several(
    "--threads",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of threads of onnxruntime, 0 for all, by default 1 and 0",
)
@PROVIDERS
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs.")
@runtime_options
@click.option(
    "--specialize",
    is_flag=True,
    help="Have onnxruntime arrange folded tensors for its kernels: slower to fold, faster to run.",
)
@output_options
def bench(sources: tuple[str, ...], threads: tuple[int, ...], as_json: bool, **options: Any) -> int:
    """Time models and bundles side by side, in turns on the same inputs.

    The table shows the nodes and fused ops that onnxruntime runs in the end, what creating a
    session takes, seconds of a run, and where they go; of a bundle also what folding costs. One
    MODEL with --runtime-const or --overridable is measured as it is, and split.

    The exit code is 1 if a tolerance is given and the outputs of a model are further from those of
    the first.
    """
    from onnxfold.bench.models import ALL_THREADS, bench_models

    splits = {name: options.pop(name) for name in ("runtime_constants", "overridable")}
    cuts = {name: options.pop(name) for name in ("max_cache", "backend_options")}
    if any(splits.values()):
        options["splitting"] = {name: v for name, v in (splits | cuts).items() if v}
    elif any(cuts.values()):
        raise click.UsageError("--max-cache and --backend-option need --runtime-const")
    result = bench_models(sources, threads=threads or (1, ALL_THREADS), **options)
    show(result, as_json)
    return EXIT_DIFFERENT if any(each.within is False for each in result.models) else EXIT_OK
