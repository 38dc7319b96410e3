"""Tensors made from a few numbers: ConstantOfShape, Range, Trilu."""

from __future__ import annotations

import math

import numpy as np

from onnxfold.kernels.dtypes import (
    FLOAT32,
    FLOAT64,
    INTEGERS,
    check_allocatable,
    check_representable,
    integers,
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
    """``start, start + delta, ...`` up to but without ``limit``; each from the one before.

    Floats therefore collect rounding errors as onnxruntime's do.
    """
    for x in (start, limit, delta):
        if x.size != 1:
            raise Unfoldable("the bounds of a range are scalars")
    if start.dtype not in INTEGERS and start.dtype not in (FLOAT32, FLOAT64):
        raise NotExact(f"no NumPy range of {start.dtype.name}")
    count = _range_count(start.reshape(()), limit.reshape(()), delta.reshape(()))
    check_allocatable([count], start.dtype)
    steps = np.empty(count, start.dtype)
    steps[:1] = start.reshape(())
    steps[1:] = delta.reshape(())
    if start.dtype in INTEGERS:
        return np.cumsum(steps, dtype=start.dtype)
    return np.asarray(np.add.accumulate(steps))


def _range_count(start: Array, limit: Array, delta: Array) -> int:
    if not delta:
        raise Unfoldable("a range needs a delta other than 0")
    if start.dtype in INTEGERS:
        span, step = int(limit) - int(start), int(delta)
        count = max(0, -(-span // step))
        check_allocatable([count], start.dtype)  # an engine may take an overflow for no elements
        if abs(span) > _DOUBLE_EXACT or abs(span) > np.iinfo(start.dtype).max:
            raise NotExact("the range's length is beyond exact float64")
        return count
    # The difference is rounded to the dtype, the quotient to float64.
    ratio = float(limit - start) / float(delta)
    if not math.isfinite(ratio):
        raise Unfoldable("a range of infinite length")
    return max(0, math.ceil(ratio))


@kernel("Trilu", since=14)
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """The upper (or lower) triangle of the last two axes from diagonal ``k`` on, else 0."""
    if x.ndim < 2:
        raise Unfoldable(f"matrices are needed, not rank {x.ndim}")
    diagonal = 0 if k is None else int(k.reshape(()))
    check_allocatable(x.shape, x.dtype)
    rows = np.arange(x.shape[-2]).reshape(-1, 1)
    columns = np.arange(x.shape[-1])
    keep = columns - rows >= diagonal if upper else columns - rows <= diagonal
    return np.asarray(np.where(keep, x, np.zeros((), x.dtype)))
