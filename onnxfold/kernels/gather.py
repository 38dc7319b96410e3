"""Selection by index: Gather."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import check_allocatable, normalized_axis
from onnxfold.kernels.registry import Array, Unfoldable, kernel
from onnxfold.pool.buffer import distinct


@kernel("Gather")
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """``x`` at ``indices`` along ``axis``, whose place the axes of ``indices`` take.

    Indices count from the end when negative. A scalar index gives a view.
    """
    axis = normalized_axis(axis, x.ndim)
    if x.dtype.kind in "OSU" and math.prod(x.shape[axis + 1 :]) > 1:
        raise Unfoldable("onnxruntime copies the first string of each slice only")
    _check_indices(indices, x.shape[axis])
    before = (slice(None),) * axis
    index: tuple[Any, ...]
    if indices.ndim == 0:
        index = (*before, int(indices), ...)
        return np.asarray(x[index])
    check_allocatable(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype)
    if x.flags.c_contiguous:
        return np.take(x, indices, axis=axis)
    # np.take would first copy the whole of a strided or zero-stride operand.
    index = (*before, indices)
    return np.ascontiguousarray(x[index])


def _check_indices(indices: Array, size: int) -> None:
    """Raise Unfoldable unless all indices are in ``[-size, size)``: no evaluator accepts them."""
    if indices.dtype.kind not in "iu":
        raise Unfoldable(f"indices of dtype {indices.dtype.name}")
    indices = distinct(indices)
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        raise Unfoldable(f"an index is out of range for dimension {size}")
