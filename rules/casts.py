"""Remove lossless casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.rewrite import (
    BFLOAT16,
    BOOL,
    DOUBLE,
    FLOAT,
    FLOAT16,
    Attribute,
    Matched,
    computed,
    op,
    rule,
    where,
)

_HALF = (FLOAT16, BFLOAT16)
_FLOATS = (*_HALF, FLOAT, DOUBLE)


@computed
def loses_nothing(dtype: ir.DataType, t: int, u: int) -> bool:
    """Return whether casts of a dtype to t and then to u have the same result as the direct one."""
    dtypes = first, between, last = dtype, ir.DataType(t), ir.DataType(u)
    if not all(d in _FLOATS or d == BOOL or (d.is_integer() and d.bitwidth >= 8) for d in dtypes):
        return False
    if all(d.is_integer() for d in dtypes) and between.bitwidth >= last.bitwidth:
        return True  # integers wrap: the low bits are those of the first dtype
    if between in _FLOATS and last.is_integer() and not np.can_cast(first.numpy(), last.numpy()):
        # overflow is undefined: only if it cannot differ
        return first in _HALF and between == FLOAT and last.bitwidth >= 32
    # NumPy considers casts from 64-bit integers to double safe
    is_rounded = first.is_integer() and first.bitwidth == 64 and between in _FLOATS
    return np.can_cast(first.numpy(), between.numpy()) and not is_rounded


@rule(seen_in="trueocr/rec")
def cast_of_cast(x, t: Attribute, u: Attribute):
    """Cast(Cast(x)) is one Cast if the dtype in between loses nothing that the result shows."""
    return op.Cast(op.Cast(x, to=t), to=u) >> op.Cast(x, to=u), where(loses_nothing(x.dtype, t, u))


@computed
def same_number(made: Matched, t: int) -> np.ndarray[Any, Any] | None:
    """Return what a ConstantOfShape fills in, in another dtype, if it is the same number there."""
    given = made.node.attributes.get("value")
    number = np.zeros(1, np.float32) if given is None else given.as_tensor().numpy()
    with np.errstate(all="ignore"):
        found = number.astype(ir.DataType(t).numpy())
    return found if found.dtype.kind in "biuf" and found == number else None


@rule(opset=9, seen_in="models/lora/torchscript")
def cast_of_fill(shape, t: Attribute):
    """Cast of a ConstantOfShape is a ConstantOfShape of the other dtype."""
    made = op("ConstantOfShape")(shape)
    after = op.ConstantOfShape(shape, value=same_number(made, t))
    return op.Cast(made, to=t) >> after, where(made.dtype != t)


@rule(seen_in="torch/convolution")
def cast_like_known(x, y):
    """CastLike becomes Cast: the dtype of its second operand is known."""
    return op.CastLike(x, y) >> op.Cast(x, to=y.dtype)
