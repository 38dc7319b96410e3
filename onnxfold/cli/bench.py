"""`onnxfold bench`: what onnxruntime makes of models, and what splitting gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxfold.cli.arguments import (
    BACKEND,
    BACKEND_OPTIONS,
    MAX_CACHE,
    OVERRIDABLE,
    PATH,
    RUNTIME_CONSTANTS,
    comparison_options,
    dimension,
    output_options,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, write, write_json

_OF_A_SPLIT = (
    *("runtime_constants", "overridable", "max_cache", "original"),
    *("backend", "backend_options", "specialize"),
)
_OF_MODELS = ("feeds", "rtol", "atol", "ulp", "providers")


@click.command()
@click.argument("sources", metavar="MODEL...|BUNDLE", type=PATH, nargs=-1, required=True)
@comparison_options
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a dynamic dimension; may be repeated.  [default: 1 for a batch, 16, or others]",
)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, metavar="N")
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Of onnxruntime, 0 for all; may be repeated for models.  [default: 1, for models also 0]",
)
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="Execution provider of onnxruntime; may be repeated.  [default: CPUExecutionProvider]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@RUNTIME_CONSTANTS
@OVERRIDABLE
@MAX_CACHE
@click.option(
    "--original", type=PATH, metavar="MODEL", help="What BUNDLE was made of, to compare with."
)
@BACKEND
@BACKEND_OPTIONS
@click.option(
    "--specialize",
    is_flag=True,
    help="Have onnxruntime arrange folded tensors for its kernels: slower to fold, faster to run.",
)
@output_options
def bench(
    sources: tuple[str, ...],
    dims: tuple[tuple[str, int], ...],
    threads: tuple[int, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Time sessions and runs of models, in turns on the same inputs.

    With several MODELs, or one: the nodes and fused ops that onnxruntime runs in the end, what
    creating a session takes, seconds of a run, and where they go. The exit code is 1 if a tolerance
    is given and the outputs of a model are further from those of the first.

    With a BUNDLE, or one MODEL and --runtime-const: the original, and entry after folding.
    """
    ctx = click.get_current_context()
    given = {
        name
        for name in (*_OF_A_SPLIT, *_OF_MODELS)
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    is_split = len(sources) == 1 and (Path(sources[0]).is_dir() or given.intersection(_OF_A_SPLIT))
    _refuse(ctx, given.intersection(_OF_MODELS if is_split else _OF_A_SPLIT), bool(is_split))
    own = {name: options[name] for name in (_OF_A_SPLIT if is_split else _OF_MODELS)}
    shared = {"dims": dict(dims), "rounds": options["rounds"], "seed": options["seed"]}
    if is_split:
        from onnxfold.runtime.bench import bench as bench_split

        if len(threads) > 1:
            raise click.UsageError("--threads is given once for a bundle")
        split = bench_split(sources[0], threads=threads[0] if threads else 1, **shared, **own)
        if as_json:
            write_json(split.to_dict())
        else:
            from onnxfold.report.bundle_table import bench_text

            write(bench_text(split))
        return EXIT_OK
    from onnxfold.bench.models import ALL_THREADS, bench_models

    result = bench_models(sources, threads=threads or (1, ALL_THREADS), **shared, **own)
    if as_json:
        write_json(result.to_dict())
    else:
        from onnxfold.report.bench_table import bench_models_text

        write(bench_models_text(result))
    return EXIT_DIFFERENT if any(each.within is False for each in result.models) else EXIT_OK


def _refuse(ctx: click.Context, names: set[str], is_split: bool) -> None:
    """Options of the other form are a mistake, not something to leave out."""
    for option in ctx.command.params:
        if option.name in names:
            form = "models side by side" if is_split else "a bundle, or one model that is split"
            raise click.UsageError(f"{option.opts[0]} is for {form}")
