"""Selection by index: Gather."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import check_allocatable, normalized_axis
from onnxfold.kernels.registry import Array, Kind, Unfoldable, kernel
from onnxfold.kernels.selection import Picks
from onnxfold.pool.buffer import distinct


def _gathered(x: Array, indices: Array, *, axis: int = 0) -> Picks:
    axis = normalized_axis(axis, x.ndim)
    check_indices(indices, x.shape[axis])
    _refuse_strings(x, axis)
    return Picks.along(x.ndim, {axis: indices})


@kernel("Gather", kind=Kind.SELECTED, selection=_gathered)
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """``x`` at ``indices`` along ``axis``, whose place the axes of ``indices`` take.

    Indices count from the end when negative. A scalar index gives a view.
    """
    _refuse_strings(x, normalized_axis(axis, x.ndim))
    return _taken(x, indices, axis)


def _taken(x: Array, indices: Array, axis: int) -> Array:
    axis = normalized_axis(axis, x.ndim)
    check_indices(indices, x.shape[axis])
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


def _refuse_strings(x: Array, axis: int) -> None:
    if x.dtype.kind in "OSU" and math.prod(x.shape[axis + 1 :]) > 1:
        raise Unfoldable("onnxruntime copies the first string of each slice only")


def check_indices(indices: Array, size: int) -> None:
    """Raise Unfoldable unless all indices are in ``[-size, size)``: no evaluator accepts them."""
    if indices.dtype.kind not in "iu":
        raise Unfoldable(f"indices of dtype {indices.dtype.name}")
    indices = distinct(indices)
    if indices.size and not (-size <= int(indices.min()) and int(indices.max()) < size):
        raise Unfoldable(f"an index is out of range for dimension {size}")
