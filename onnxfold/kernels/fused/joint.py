"""Strided arrays that are moved as one: their axes together are the axes of a value.

A value whose elements are selected by lists of places is not one strided array. It is a few of
them, the operand and the lists, each of which varies along some axes of the value and along no
others. What a view op does to such a value it does to each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.kernels.registry import Postpone
from onnxfold.pool.buffer import Array

Move = Callable[[Array], Array]


@dataclass(frozen=True)
class Part:
    """An array, and for each of its axes that of the value; None where it has none."""

    array: Array
    axes: tuple[int | None, ...]


@dataclass(frozen=True)
class _Run:
    """Axes of the value that are one run of elements in a part's memory."""

    part: int
    axes: tuple[int, ...]
    """Axes of the part."""
    extent: int
    stride: int


def moved(
    parts: Sequence[Part], shape: Sequence[int], move: Move
) -> tuple[list[Part], tuple[int, ...]]:
    """Apply a view to all parts.

    Args:
        parts: No two of them have an axis of the value in common.
        shape: That of the value; it repeats its elements along axes that no part has.
        move: Gives a view of an array of that shape.

    Returns:
        The parts of the moved value, and its shape. Axes that a part has for itself come first.

    Raises:
        Postpone: strides do not express it.
    """
    runs, strides = _layout(parts, shape)
    # where an element of this is in memory says where it is in the parts; no element is read
    place = np.empty(1, np.uint8)
    layout = np.lib.stride_tricks.as_strided(place, shape, strides, writeable=False)
    result = move(layout)
    if not result.size:
        raise Postpone(result.shape, result.dtype)
    offset = int(result.__array_interface__["data"][0]) - int(place.__array_interface__["data"][0])
    units = _units(runs)
    starts = []
    for unit in reversed(units):
        start, offset = divmod(offset, unit)
        starts.append(start)
    starts.reverse()
    axes: list[list[tuple[int, int]]] = [[] for _ in parts]  # axis of the value and its stride
    for axis, (extent, stride) in enumerate(zip(result.shape, result.strides, strict=True)):
        if extent > 1 and stride:
            number = max(k for k, unit in enumerate(units) if unit <= abs(stride))
            step, rest = divmod(stride, units[number])
            if rest:
                raise Postpone(result.shape, result.dtype)
            axes[runs[number].part].append((axis, step * runs[number].stride))
    first = [_first(part) for part in parts]
    for run, start in zip(runs, starts, strict=True):
        extents = [parts[run.part].array.shape[k] for k in run.axes]
        for k, position in zip(run.axes, np.unravel_index(start, extents), strict=True):
            first[run.part][k] = int(position)
    return [
        _restrided(part, at, varying, result.shape)
        for part, at, varying in zip(parts, first, axes, strict=True)
    ], result.shape


def _layout(parts: Sequence[Part], shape: Sequence[int]) -> tuple[list[_Run], list[int]]:
    """The runs, last axes first, and strides of the value such that each run has its own digits."""
    home = {
        axis: (number, k)
        for number, part in enumerate(parts)
        for k, axis in enumerate(part.axes)
        if axis is not None
    }
    runs: list[_Run] = []
    joins = False  # whether the next axis to the front may go on with the last run
    strides = [0] * len(shape)
    unit = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            continue
        if axis not in home:
            joins = False
            continue
        number, k = home[axis]
        stride = parts[number].array.strides[k]
        if joins and runs[-1].part == number and stride == runs[-1].stride * runs[-1].extent:
            last = runs.pop()
            strides[axis] = unit * last.extent
            runs.append(_Run(number, (k, *last.axes), shape[axis] * last.extent, last.stride))
        else:
            if runs:
                unit *= 2 * runs[-1].extent + 1
            strides[axis] = unit
            runs.append(_Run(number, (k,), shape[axis], stride))
        joins = True
    return runs, strides


def _units(runs: Sequence[_Run]) -> list[int]:
    units = [1]
    for run in runs:
        units.append(units[-1] * (2 * run.extent + 1))
    return units[: len(runs)]


def _first(part: Part) -> list[int | None]:
    """The place of the first element; None for axes that stay."""
    return [None if axis is None else 0 for axis in part.axes]


def _restrided(
    part: Part,
    first: Sequence[int | None],
    varying: Sequence[tuple[int, int]],
    shape: Sequence[int],
) -> Part:
    begin = part.array[tuple(slice(None) if k is None else slice(k, k + 1) for k in first)]
    kept = [k for k, axis in enumerate(part.axes) if axis is None]
    extents = [part.array.shape[k] for k in kept] + [shape[axis] for axis, _ in varying]
    strides = [part.array.strides[k] for k in kept] + [stride for _, stride in varying]
    array = np.lib.stride_tricks.as_strided(begin, extents, strides, writeable=False)
    return Part(array, (*(None for _ in kept), *(axis for axis, _ in varying)))


def without_repeats(part: Part) -> Part:
    """The part without axes of the value along which it does not vary."""
    index: list[slice | int] = []
    axes: list[int | None] = []
    for axis, extent, stride in zip(part.axes, part.array.shape, part.array.strides, strict=True):
        repeats = axis is not None and (extent == 1 or stride == 0) and extent > 0
        index.append(0 if repeats else slice(None))
        if not repeats:
            axes.append(axis)
    return Part(np.asarray(part.array[tuple(index)]), tuple(axes))
