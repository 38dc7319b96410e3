"""`onnxfold bench`: how long models and bundles take."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    PATH,
    PROVIDERS,
    comparison_options,
    number,
    output_options,
    runtime_options,
    several,
    sizes,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, show


@click.command()
@click.argument("sources", metavar="MODEL [MODEL|BUNDLE]...", type=PATH, nargs=-1, required=True)
@comparison_options
@sizes("--dim", "dims", help="Size of a dynamic dimension, by default 1 for a batch, 16, or others")
@number("--rounds", click.IntRange(1), 20, "Timed runs of each model.")
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

    The table shows the nodes and fused ops after onnxruntime's own optimizations, what creating a
    session takes, and the median time of a run: CPU time with one thread, else wall time. The speed
    is shown only if it differs from the first model's by more than the spread. For a bundle, the
    cost of folding is shown, too. One MODEL with --runtime-const or --overridable is measured as it
    is, and split.

    The exit code is 1 if a tolerance is given and the outputs of a model are further from those of
    the first.
    """
    from onnxfold.bench.side_by_side import ALL_THREADS, bench_models

    splits = {name: options.pop(name) for name in ("runtime_constants", "overridable")}
    cuts = {name: options.pop(name) for name in ("max_cache", "backend_options")}
    if any(splits.values()):
        options["splitting"] = {name: v for name, v in (splits | cuts).items() if v}
    elif any(cuts.values()):
        raise click.UsageError("--max-cache and --backend-option need --runtime-const")
    result = bench_models(sources, threads=threads or (1, ALL_THREADS), **options)
    show(result, as_json)
    return EXIT_DIFFERENT if any(each.within is False for each in result.models) else EXIT_OK
