"""Regions: which elements of a value are wanted, for every axis a stretch or a list of places.

A region is what :data:`~onnxfold.pool.source.Box` is, and may have lists of places besides slices:
its elements are those of ``x[numpy.ix_(...)]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Union

import numpy as np

from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Box

Index = Union[slice, Array]  # noqa: UP007 (evaluated at run time)
"""``slice(start, stop)``, or a 1-D array of places that are not negative."""
Region = tuple[Index, ...]

ONE = slice(0, 1)


def length(index: Index) -> int:
    """How many places an index has."""
    return index.stop - index.start if isinstance(index, slice) else index.size


def lengths(region: Region) -> tuple[int, ...]:
    """The shape of what is in a region."""
    return tuple(map(length, region))


def part(index: Index, start: int, stop: int) -> Index:
    """The places of an index from the ``start``-th up to the ``stop``-th."""
    if isinstance(index, slice):
        return slice(index.start + start, index.start + stop)
    return index[start:stop]


def within(region: Region, shape: Sequence[int]) -> Region:
    """The region of an operand that is broadcast to the value: fewer axes, or extent 1 for any."""
    last = region[len(region) - len(shape) :]
    return tuple(ONE if extent == 1 else index for index, extent in zip(last, shape, strict=True))


def cuts(region: Region, sizes: Sequence[int], inner: int) -> Iterator[tuple[Region, Box]]:
    """Cut a region into pieces.

    Args:
        region: What is cut.
        sizes: Extents of a piece; it is smaller at the end of an axis.
        inner: The axis along which pieces follow each other first.

    Yields:
        The region of each piece, and its place in an array of the whole.
    """
    extents = lengths(region)
    counts = [-(-extent // size) for extent, size in zip(extents, sizes, strict=True)]
    if math.prod(counts) == 1:
        yield region, tuple(slice(0, extent) for extent in extents)
        return
    axes = [axis for axis in range(len(counts)) if axis != inner] + [inner]
    for turn in np.ndindex(*(counts[axis] for axis in axes)):
        place = [slice(0, 0)] * len(axes)
        for axis, k in zip(axes, turn, strict=True):
            start = k * sizes[axis]
            place[axis] = slice(start, min(start + sizes[axis], extents[axis]))
        yield (
            tuple(part(index, s.start, s.stop) for index, s in zip(region, place, strict=True)),
            tuple(place),
        )


def as_slice(places: Array) -> slice | None:
    """The slice that selects the same places, of any step; None if none does."""
    if places.size < 2:
        return slice(int(places[0]), int(places[0]) + 1) if places.size else slice(0, 0)
    steps = np.diff(places[:3])
    step = int(steps[0])
    if not step or (steps != step).any() or (np.diff(places) != step).any():
        return None
    stop = int(places[-1]) + step
    return slice(int(places[0]), stop if stop >= 0 else None, step)


def view_at(array: Array, place: Sequence[slice]) -> Array:
    """The part of an array in a box, as a view also of an array without axes."""
    index: tuple[Any, ...] = (*place, ...)
    return np.asarray(array[index])


def along(axis: int, index: Index) -> tuple[Index, ...]:
    """What selects places along one axis of an array and all along the others."""
    return (*(slice(None),) * axis, index)
