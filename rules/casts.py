"""Casts that can be removed because they lose nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.rewrite import Matched, attributes, op, rule, values

x, y = values("x y")
t, u = attributes("t u")

_BOOL = ir.DataType.BOOL
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOATS = (*_HALF, ir.DataType.FLOAT, ir.DataType.DOUBLE)


def gives_the_same(x: Matched, t: int, u: int) -> bool:
    """Return whether a cast of x to t and then to u gives what the direct one gives."""
    dtypes = first, between, last = x.dtype, ir.DataType(t), ir.DataType(u)
    if not all(d in _FLOATS or d == _BOOL or (d.is_integer() and d.bitwidth >= 8) for d in dtypes):
        return False
    if all(d.is_integer() for d in dtypes) and between.bitwidth >= last.bitwidth:
        return True  # integers wrap: the low bits are those of the first
    if between in _FLOATS and last.is_integer() and not np.can_cast(first.numpy(), last.numpy()):
        # what does not fit is undefined: only where it is all the same
        return first in _HALF and between == ir.DataType.FLOAT and last.bitwidth >= 32
    # NumPy considers casts from 64-bit integers to double safe
    is_rounded = first.is_integer() and first.bitwidth == 64 and between in _FLOATS
    return np.can_cast(first.numpy(), between.numpy()) and not is_rounded


cast_of_cast = rule(
    op.Cast(op.Cast(x, to=t), to=u) >> op.Cast(x, to=u),
    where=gives_the_same,
    doc="Cast(Cast(x)) is one Cast if the dtype in between loses nothing that the result shows.",
    seen_in="trueocr/rec",
)

cast_like_known = rule(
    op.CastLike(x, y) >> op.Cast(x, to=lambda y: y.dtype),
    doc="CastLike becomes Cast: the dtype of its second operand is known.",
    seen_in="torch/convolution",
)
