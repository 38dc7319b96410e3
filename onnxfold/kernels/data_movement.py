"""Data movement and fills: Transpose, Reshape, Slice, Split, Concat, Gather, Shape, Range, ...

The result is a view if strides can express it, also of read-only, mapped and zero-stride inputs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxfold.kernels.registry import (
    INTEGERS,
    Array,
    Integers,
    Kind,
    NotExact,
    Unfoldable,
    broadcast_shape,
    check_allocatable,
    check_representable,
    integers,
    kernel,
    normalized_axis,
    require,
)

_DOUBLE_EXACT = 1 << 53
_RESHAPES_WITHOUT_COPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


@kernel("Identity", kind=Kind.VIEW)
def identity(x: Array) -> Array:
    """Return the input itself."""
    return x


@kernel("Transpose", kind=Kind.VIEW)
def transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Return ``x`` with axis ``perm[k]`` as axis ``k``; without ``perm`` all are reversed."""
    if perm is None:
        return np.asarray(x.T)
    if sorted(perm) != list(range(x.ndim)):
        raise Unfoldable(f"perm {list(perm)} is not a permutation of {x.ndim} axes")
    return np.transpose(x, perm)


@kernel("Reshape", since=5, kind=Kind.VIEW)
def reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    """Return the elements of ``x`` in the same order in another shape.

    0 keeps the dimension of ``x`` at that index (with ``allowzero=1`` it means 0), and one -1 is
    inferred. A copy is made only if strides cannot express the result.
    """
    given = integers(shape, "shape")
    target = [size if size or allowzero == 1 else x.shape[k] for k, size in enumerate(given)]
    if -1 in target and (known := -math.prod(target)):
        target[target.index(-1)] = math.prod(x.shape) // known
    if min(target, default=0) < 0 or math.prod(target) != math.prod(x.shape):
        raise Unfoldable(f"{math.prod(x.shape)} elements do not fit shape {given}")
    return _reshaped(x, target)


def _reshaped(x: Array, shape: Sequence[int]) -> Array:
    check_representable(shape, x.dtype)
    if x.flags.c_contiguous:
        return np.reshape(x, shape)
    # a copy only if strides cannot express the result
    if _RESHAPES_WITHOUT_COPY:
        with contextlib.suppress(ValueError):
            return np.reshape(x, shape, copy=False)
    else:
        view = np.asarray(x.view())
        with contextlib.suppress(AttributeError):
            view.shape = tuple(shape)
            return view
    check_allocatable(shape, x.dtype)
    return np.reshape(x, shape)


@kernel("Flatten", kind=Kind.VIEW)
def flatten(x: Array, *, axis: int = 1) -> Array:
    """Return a matrix: the axes before ``axis`` are the rows, the others the columns."""
    if not -x.ndim <= axis <= x.ndim:
        raise Unfoldable(f"axis {axis} is out of range for rank {x.ndim}")
    return _reshaped(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@kernel("Squeeze", kind=Kind.VIEW)
def squeeze(x: Array, axes: Integers | None = None) -> Array:
    """Return ``x`` without the given axes, which have size 1; by default all axes of size 1."""
    which = {normalized_axis(a, x.ndim) for a in integers(() if axes is None else axes, "axes")}
    if not which:
        return x.squeeze()
    return x.squeeze(tuple(which))


@kernel("Unsqueeze", kind=Kind.VIEW)
def unsqueeze(x: Array, axes: Integers) -> Array:
    """Return ``x`` with axes of size 1 inserted at ``axes``, indices in the result in any order."""
    return np.expand_dims(x, tuple(integers(axes, "axes")))


@kernel("Expand", since=8, kind=Kind.VIEW)
def expand(x: Array, shape: Array) -> Array:
    """Return ``x`` broadcast to ``shape``; a dimension 1 of ``shape`` keeps that of ``x``."""
    return _broadcast(x, broadcast_shape(x.shape, integers(shape, "shape")))


def _broadcast(x: Array, shape: Sequence[int]) -> Array:
    check_representable(shape, x.dtype)
    return np.broadcast_to(x, tuple(shape))


@kernel("Slice", kind=Kind.VIEW)
def slice_(
    x: Array,
    starts: Integers,
    ends: Integers,
    axes: Integers | None = None,
    steps: Array | None = None,
) -> Array:
    """Return ``x[start:end:step]`` along ``axes`` (the first ones if omitted).

    Negative bounds count from the end, then bounds are clamped: unlike in Python, a start before
    the first element is clamped to the first element also for a negative step.
    """
    starts, ends = integers(starts, "starts"), integers(ends, "ends")
    axes = integers(range(len(starts)) if axes is None else axes, "axes")
    each = [1] * len(starts) if steps is None else integers(steps, "steps")
    which = [slice(None)] * x.ndim
    seen = set()
    for start, end, axis, step in zip(starts, ends, axes, each, strict=True):
        axis = normalized_axis(axis, x.ndim)
        if axis in seen or step == 0:
            raise Unfoldable("a slice needs distinct axes and steps other than 0")
        seen.add(axis)
        if step < 0 and end in _UNBOUNDED:
            raise NotExact("onnxruntime takes this end for `to the first element`, ONNX does not")
        which[axis] = _bounds(start, end, step, x.shape[axis])
    return x[tuple(which)]


_UNBOUNDED = ((1 << 31) - 1, (1 << 63) - 1)


def _bounds(start: int, end: int, step: int, size: int) -> slice:
    """Return the Python slice, without negative bounds, that is equivalent to the one of ONNX."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start = min(max(start, 0), size - 1)
    end = min(max(end, -1), size - 1)
    if start <= end:
        return slice(0, 0)
    return slice(start, None if end < 0 else end, step)


@kernel("Split", since=2, kind=Kind.VIEW)
def split_(
    x: Array,
    split: Integers | None = None,
    *,
    n_outputs: int,
    axis: int = 0,
    num_outputs: int | None = None,
) -> list[Array]:
    """Return ``x`` cut along ``axis`` into the given sizes, or into equal parts.

    With ``num_outputs``, which opset 18 added, the last part may be smaller if the sizes cannot be
    equal; without it, that is an error.
    """
    axis, parts = normalized_axis(axis, x.ndim), num_outputs or n_outputs
    size = x.shape[axis]
    sizes = integers(() if split is None else split, "split")
    if not sizes:
        if num_outputs is None and size % parts:
            raise Unfoldable(f"{size} does not split into {parts} equal parts")
        part = -(-size // parts)
        if size and part * (parts - 1) >= size:
            raise NotExact(f"{size} does not split into {parts} parts of {part}")
        sizes = [min(part, size - k * part) for k in range(parts)]
    if min(sizes, default=0) < 0 or sum(sizes) != size or len(sizes) != parts:
        raise Unfoldable(f"sizes {sizes} do not split dimension {size} in {parts}")
    return np.split(x, [*itertools.accumulate(sizes[:-1])], axis)


@kernel("Shape", kind=Kind.SHAPE)
def shape_of(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    """Return ``x.shape[start:end]`` as int64; the elements of ``x`` are not read."""
    return np.array(x.shape[start:end], np.int64)


@kernel("Size", kind=Kind.SHAPE)
def size(x: Array) -> Array:
    """Return the number of elements as an int64 scalar; the elements of ``x`` are not read."""
    return np.array(math.prod(x.shape), np.int64)


@kernel("Tile", since=6)
def tile(x: Array, repeats: Array) -> Array:
    """Return ``x`` repeated along every axis; a view if only axes of size 1 are repeated."""
    counts = integers(repeats, "repeats")
    if len(counts) != x.ndim or min(counts, default=0) < 0:
        raise Unfoldable(f"repeats {counts} do not fit rank {x.ndim}")
    shape = [n * d for n, d in zip(counts, x.shape, strict=True)]
    if all(n == 1 or d == 1 for n, d in zip(counts, x.shape, strict=True)):
        return _broadcast(x, shape)
    check_allocatable(shape, x.dtype)
    return np.tile(x, counts)


@kernel("Concat", since=4, kind=Kind.ASSEMBLED)
def concat(*operands: Array, axis: int) -> Array:
    """Return the operands concatenated along ``axis``; all other dimensions are the same."""
    first = operands[0]
    if len(operands) == 1:
        return first
    axis = normalized_axis(axis, first.ndim)
    total = sum(x.shape[axis] for x in operands)
    check_allocatable((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)
    return np.concatenate(operands, axis=axis)


@kernel("Gather")
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Return ``x`` at ``indices`` along ``axis``, which the axes of ``indices`` replace.

    Negative indices count from the end. A scalar index gives a view.
    """
    axis = normalized_axis(axis, x.ndim)
    if x.dtype.kind in "OSU" and math.prod(x.shape[axis + 1 :]) > 1:
        raise Unfoldable("onnxruntime copies the first string of each slice only")
    if indices.dtype.kind not in "iu":
        raise Unfoldable(f"indices of dtype {indices.dtype.name}")
    before = (slice(None),) * axis
    index: tuple[Any, ...]
    if indices.ndim == 0:
        index = (*before, int(indices), ...)
        return np.asarray(x[index])
    check_allocatable(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype)
    if x.flags.c_contiguous:
        return np.take(x, indices, axis=axis)
    # np.take would first copy all of a strided or zero-stride operand.
    index = (*before, indices)
    return np.ascontiguousarray(x[index])


@kernel("NonZero", since=9)
def non_zero(x: Array) -> Array:
    """Return the indices of the elements that are not zero, in a row for each axis."""
    if not x.ndim:
        raise NotExact("NonZero of a scalar")
    check_allocatable((x.ndim, int(np.count_nonzero(x))), np.dtype(np.int64))
    return np.array(np.nonzero(x), np.int64)


@kernel("ConstantOfShape", since=9, kind=Kind.VIEW)
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Array:
    """Return a zero-stride tensor full of ``value`` (one element; float32 0 if omitted)."""
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    sizes = integers(shape, "shape")
    check_representable(sizes, fill.dtype)
    return np.broadcast_to(fill, sizes)


@kernel("Range", since=11)
def range_(start: Array, limit: Array, delta: Array) -> Array:
    """Return the integers ``start, start + delta, ...`` before ``limit``."""
    for x in (start, limit, delta):
        require(x, INTEGERS)
        if x.size != 1:
            raise Unfoldable("the bounds of a range are scalars")
    first, step = start.reshape(()), delta.reshape(())
    if not step:
        raise Unfoldable("a range needs a delta other than 0")
    span = int(limit.reshape(())) - int(first)
    count = max(0, -(-span // int(step)))
    check_allocatable([count], start.dtype)  # engines may treat an overflow as an empty range
    if abs(span) > min(_DOUBLE_EXACT, int(np.iinfo(start.dtype).max)):
        raise Unfoldable("the range's length is beyond exact float64")
    return np.asarray(first + np.arange(count, dtype=start.dtype) * step)
