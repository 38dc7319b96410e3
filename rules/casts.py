"""Casts that lose nothing, and so need not be there."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite import attributes, op, rule, values

x, y = values("x y")
t, u = attributes("t u")

_FLOATS = {
    ir.DataType.FLOAT16: (11, 5),
    ir.DataType.BFLOAT16: (8, 8),
    ir.DataType.FLOAT: (24, 8),
    ir.DataType.DOUBLE: (53, 11),
}
"""Bits of precision, bits of the exponent."""


def _integer_bits(dtype: ir.DataType) -> int:
    """Return the bits of the magnitude."""
    if dtype == ir.DataType.BOOL:
        return 1
    return int(dtype.bitwidth) - int(dtype.is_signed())


def _is_integral(dtype: ir.DataType) -> bool:
    return (dtype.is_integer() and dtype.bitwidth >= 8) or dtype == ir.DataType.BOOL


def holds_all_of(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Return whether every number of the narrow dtype is a number of the wide one."""
    if narrow in _FLOATS:
        return wide in _FLOATS and all(
            a >= b for a, b in zip(_FLOATS[wide], _FLOATS[narrow], strict=True)
        )
    if not _is_integral(narrow):
        return False
    if wide in _FLOATS:
        return _integer_bits(narrow) <= _FLOATS[wide][0]
    if not _is_integral(wide) or wide == ir.DataType.BOOL:
        return wide == narrow
    signed_to_unsigned = narrow != ir.DataType.BOOL and narrow.is_signed() > wide.is_signed()
    return _integer_bits(narrow) <= _integer_bits(wide) and not signed_to_unsigned


def is_superfluous(first: ir.DataType, t: int, u: int) -> bool:
    """Return whether a cast by way of dtype ``t`` gives what the direct one to ``u`` gives."""
    between, last = ir.DataType(t), ir.DataType(u)
    if not all(d in _FLOATS or _is_integral(d) for d in (first, between, last)):
        return False
    if all(d.is_integer() for d in (first, between, last)) and between.bitwidth >= last.bitwidth:
        return True  # integers wrap: the low bits are those of the first
    if not holds_all_of(between, first):
        return False
    if between in _FLOATS and last.is_integer():
        # what does not fit is undefined: only where there is no such thing, or it is all the same
        half = first in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        by_single = half and between == ir.DataType.FLOAT and last.bitwidth >= 32
        return holds_all_of(last, first) or by_single
    return True


cast_of_cast = rule(
    op.Cast(op.Cast(x, to=t), to=u) >> op.Cast(x, to=u),
    where=lambda x, t, u: is_superfluous(x.dtype, t, u),
    doc="A cast to a dtype that holds every number of the one before.",
    seen_in="trueocr/rec",
)

cast_like_known = rule(
    op.CastLike(x, y) >> op.Cast(x, to=lambda y: y.dtype),
    doc="The dtype is known: the other value is not needed for it.",
    seen_in="torch/convolution",
)
