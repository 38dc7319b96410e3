"""Selection by index: Gather, GatherElements, GatherND, Compress, NonZero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import check_allocatable, check_readable, normalized_axis
from onnxfold.kernels.registry import Array, Kind, Unfoldable, kernel
from onnxfold.kernels.selection import LONGEST_LIST, Picks
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


@kernel("GatherElements", since=11)
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """``out[i, j, ...] = x[i, indices[i, j, ...], ...]`` for ``axis`` 1."""
    axis = normalized_axis(axis, x.ndim)
    return np.asarray(x[element_index(x, indices, axis)])


def element_index(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """The index tuple that replaces only the coordinate along ``axis`` by ``indices``."""
    if indices.ndim != x.ndim:
        raise Unfoldable(f"indices of rank {indices.ndim} for data of rank {x.ndim}")
    for k, (n, d) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if k != axis and n > d:
            raise Unfoldable(f"indices of shape {list(indices.shape)} are larger than the data")
    check_indices(indices, x.shape[axis])
    check_allocatable(indices.shape, x.dtype)
    index: list[Array] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    index[axis] = indices
    return tuple(index)


@kernel("GatherND", since=11)
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """``x`` at the coordinates in the last axis of ``indices``; ``batch_dims`` axes are paired."""
    depth = _depth(x, indices, batch_dims)
    lead = indices.shape[:-1]
    check_allocatable(lead + x.shape[batch_dims + depth :], x.dtype)
    for k in range(depth):
        check_indices(indices[..., k], x.shape[batch_dims + k])
    coordinates = [indices[..., k] for k in range(depth)]
    for k in range(batch_dims):
        grid = np.arange(lead[k]).reshape((-1,) + (1,) * (len(lead) - k - 1))
        coordinates.insert(k, grid)
    result = x[tuple(coordinates)]
    if depth == 0:  # no coordinate spans the lead
        result = np.broadcast_to(
            result.reshape(
                x.shape[:batch_dims] + (1,) * (len(lead) - batch_dims) + x.shape[batch_dims:]
            ),
            lead + x.shape[batch_dims:],
        )
    return np.asarray(result)


def _depth(x: Array, indices: Array, batch_dims: int) -> int:
    if indices.ndim == 0 or not 0 <= batch_dims < min(x.ndim, indices.ndim):
        raise Unfoldable(f"batch_dims {batch_dims} for ranks {x.ndim} and {indices.ndim}")
    depth = int(indices.shape[-1])
    if depth > x.ndim - batch_dims or x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise Unfoldable(f"indices of shape {list(indices.shape)} for data {list(x.shape)}")
    return depth


def _compressed(x: Array, condition: Array, *, axis: int | None = None) -> Picks | None:
    if axis is None or condition.size > LONGEST_LIST:
        return None
    axis = normalized_axis(axis, x.ndim)
    return Picks.along(x.ndim, {axis: np.flatnonzero(condition[: x.shape[axis]])})


@kernel("Compress", since=9, kind=Kind.SELECTED, selection=_compressed)
def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """The slices along ``axis`` (or elements of the flattened ``x``) where ``condition`` is true.

    A condition may be shorter than the axis: the rest is left out.
    """
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = normalized_axis(axis, x.ndim)
    which = np.flatnonzero(condition[: x.shape[axis]])
    return _taken(x, which, axis)


@kernel("NonZero", since=9)
def non_zero(x: Array) -> Array:
    """The coordinates of the nonzero elements in row-major order, one column each."""
    check_readable(x)
    if x.ndim == 0:
        x = x.reshape(1)
    check_allocatable([x.ndim, int(np.count_nonzero(x))], np.dtype(np.int64))
    return np.array(np.nonzero(x), np.int64)
