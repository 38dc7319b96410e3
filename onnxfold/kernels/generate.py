"""Tensors made from a few numbers: ConstantOfShape, Range."""

from __future__ import annotations

import numpy as np

from onnxfold.kernels.dtypes import (
    INTEGERS,
    check_allocatable,
    check_representable,
    integers,
    require,
)
from onnxfold.kernels.registry import Array, Kind, NotExact, Unfoldable, kernel

_DOUBLE_EXACT = 1 << 53


@kernel("ConstantOfShape", since=9, kind=Kind.VIEW)
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Array:
    """A tensor full of ``value`` (one element; float32 0 if omitted) that stores it once."""
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    sizes = integers(shape, "shape")
    check_representable(sizes, fill.dtype)
    return np.broadcast_to(fill, sizes)


@kernel("Range", since=11)
def range_(start: Array, limit: Array, delta: Array) -> Array:
    """``start, start + delta, ...`` up to but without ``limit``, of integers."""
    for x in (start, limit, delta):
        require(x, INTEGERS)
        if x.size != 1:
            raise Unfoldable("the bounds of a range are scalars")
    first, step = start.reshape(()), delta.reshape(())
    if not step:
        raise Unfoldable("a range needs a delta other than 0")
    span = int(limit.reshape(())) - int(first)
    count = max(0, -(-span // int(step)))
    check_allocatable([count], start.dtype)  # an engine may take an overflow for no elements
    if abs(span) > min(_DOUBLE_EXACT, int(np.iinfo(start.dtype).max)):
        raise NotExact("the range's length is beyond exact float64")
    return np.asarray(first + np.arange(count, dtype=start.dtype) * step)
