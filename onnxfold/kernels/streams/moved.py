"""Sources that compute nothing: their elements are those of their operands in other places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Union

import numpy as np

from onnxfold.kernels.streams.regions import ONE, Index, Region, along, length, lengths, within
from onnxfold.kernels.streams.sources import Pages, Source
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Box

Choice = Union[range, Array, None]  # noqa: UP007 (evaluated at run time)
"""What is selected along an axis: places, which count from the end where negative; None for all."""


class Transposed(Source):
    """Axis ``k`` is axis ``order[k]`` of the operand."""

    def __init__(self, operand: Source, order: Sequence[int]) -> None:
        self._operand = operand
        self._order = tuple(order)
        self._inverse = [order.index(k) for k in range(len(order))]
        self.shape = tuple(operand.shape[k] for k in order)
        self.dtype = operand.dtype
        self.fast_axis = self._inverse[operand.fast_axis]

    def read(self, region: Region) -> Array:
        """The elements in a region: a view of the operand's."""
        return np.transpose(self._operand.read(self._inner(region)), self._order)

    def fill(self, region: Region, target: Array) -> None:
        """Compute the elements in a region into ``target``."""
        self._operand.fill(self._inner(region), target.transpose(self._inverse))

    def _inner(self, region: Region) -> Region:
        return tuple(region[k] for k in self._inverse)


class Selected(Source):
    """Some places along each axis of the operand.

    Args:
        operand: What is selected from.
        choices: For each axis what is selected; of no effect where the operand has extent 1.
        pages: Counts what is read of the lists.
        lists: Buffers that the choices may be views of.
    """

    def __init__(
        self,
        operand: Source,
        choices: Sequence[Choice],
        pages: Pages,
        lists: Sequence[Buffer] = (),
    ) -> None:
        self._operand = operand
        self._pages = pages
        self._choices = [
            None if extent == 1 else choice
            for choice, extent in zip(choices, operand.shape, strict=True)
        ]
        self._lists = lists
        self.shape = tuple(
            extent if choice is None else len(choice)
            for choice, extent in zip(self._choices, operand.shape, strict=True)
        )
        self.dtype = operand.dtype
        self.fast_axis = operand.fast_axis

    def read(self, region: Region) -> Array:
        """The elements in a region."""
        return self._operand.read(self._inner(region))

    def fill(self, region: Region, target: Array) -> None:
        """Compute the elements in a region into ``target``."""
        self._operand.fill(self._inner(region), target)

    def _inner(self, region: Region) -> Region:
        for buffer in self._lists:
            self._pages.note(buffer, 8 * max(lengths(region), default=1))
        return tuple(map(_chosen, self._choices, region, self._operand.shape))


def _chosen(choice: Choice, index: Index, extent: int) -> Index:
    """The places of the operand behind those of the selection."""
    if choice is None:
        return index
    if isinstance(choice, range):
        if isinstance(index, slice):
            run = choice[index]
            if run.step == 1:
                return slice(run.start, run.stop)
            return np.arange(run.start, run.stop, run.step)
        return index * choice.step + choice.start
    places = choice[index].astype(np.intp, copy=False)
    if places.size and places.min() < 0:
        places = np.where(places < 0, places + extent, places)
    return places


class Concatenated(Source):
    """Several sources, one after the other along an axis.

    Args:
        parts: The sources and how long each is along the axis.
        axis: The axis.
        shape: The shape of the value; the parts may have extent 1 along other axes.
    """

    def __init__(
        self, parts: Sequence[tuple[Source, int]], axis: int, shape: Sequence[int]
    ) -> None:
        self._axis = axis
        ends = itertools.accumulate(extent for _, extent in parts)
        self._parts = [
            (end - extent, end, source) for end, (source, extent) in zip(ends, parts, strict=True)
        ]
        self.shape = tuple(shape)
        largest = max((source for source, _ in parts), key=lambda s: math.prod(s.shape))
        self.dtype = largest.dtype
        self.fast_axis = largest.fast_axis

    def fill(self, region: Region, target: Array) -> None:
        """Compute the elements in a region into ``target``."""
        wanted = region[self._axis]
        for start, stop, source in self._parts:
            place, inner = _overlap(wanted, start, stop)
            if not length(inner):
                continue
            box = within((*region[: self._axis], inner, *region[self._axis + 1 :]), source.shape)
            where = along(self._axis, place)
            if isinstance(place, slice) and lengths(box) == target[where].shape:
                source.fill(box, target[where])
            else:
                target[where] = source.read(box)


def _overlap(wanted: Index, start: int, stop: int) -> tuple[Index, Index]:
    """Which of the wanted places are from ``start`` to ``stop``, and what they are from there."""
    if isinstance(wanted, slice):
        low, high = max(wanted.start, start), max(start, min(wanted.stop, stop))
        low = min(low, high)
        return slice(low - wanted.start, high - wanted.start), slice(low - start, high - start)
    which = np.flatnonzero((wanted >= start) & (wanted < stop))
    return which, wanted[which] - start


class Reshaped(Source):
    """The elements of the operand in their order, in another shape.

    Args:
        operand: What is reshaped.
        old: Its shape, with all that it repeats.
        new: The shape it gets.
    """

    def __init__(self, operand: Source, old: Sequence[int], new: Sequence[int]) -> None:
        self._operand = operand
        self._groups: list[_Group] = []
        self.dtype = operand.dtype
        self.fast_axis = max(0, len(new) - 1)
        shape: list[int] = []
        done = 0
        for before, after in groups_of(old, new):
            own = operand.shape[done : done + len(before)]
            if done <= operand.fast_axis < done + len(before) and after:
                self.fast_axis = len(shape) + len(after) - 1
            done += len(before)
            repeats = all(extent == 1 for extent in own)
            shape += [1] * len(after) if repeats else after
            self._groups.append(_Group(tuple(before), tuple(after), repeats))
        self.shape = tuple(shape)

    def read(self, region: Region) -> Array:
        """The elements in a region: a view of the operand's where one box of it has them."""
        extents: list[int] = []
        boxes: list[list[tuple[Region, slice]]] = []
        picked: dict[int, Array] = {}
        done = 0
        for group in self._groups:
            index = _joined(region[done : done + len(group.new)], group.new)
            done += len(group.new)
            if group.repeats:
                index = ONE
            elif group.merges and not isinstance(index, slice):
                # boxes hold stretches: what lies between the places is read, too
                first = int(index.min())
                picked[len(extents)] = index - first
                index = slice(first, int(index.max()) + 1)
            boxes.append(list(_boxes(index, group)))
            extents.append(length(index))
        if all(len(of_group) == 1 for of_group in boxes):
            result = self._block([of_group[0][0] for of_group in boxes]).reshape(extents)
        else:
            result = np.empty(extents, self.dtype.numpy())
            for combined in itertools.product(*boxes):
                target = result[tuple(place for _, place in combined)]
                target[...] = self._block([box for box, _ in combined]).reshape(target.shape)
        for axis, places in picked.items():
            result = result.take(places, axis=axis)
        return result.reshape(lengths(region))

    def _block(self, boxes: Sequence[Region]) -> Array:
        box = tuple(index for of_group in boxes for index in of_group)
        return np.broadcast_to(self._operand.read(within(box, self._operand.shape)), lengths(box))


class _Group(NamedTuple):
    """Axes of an operand that make up axes of what it is reshaped to."""

    old: tuple[int, ...]
    """Extents of the operand's axes."""
    new: tuple[int, ...]
    """Extents of the result's axes."""
    repeats: bool
    """All elements along these axes are the same."""

    @property
    def merges(self) -> bool:
        """True if several axes become one."""
        return sum(extent > 1 for extent in self.old) > 1


def groups_of(
    old: Sequence[int], new: Sequence[int]
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Cut two shapes of the same size into groups of axes of the same size, as many as can be."""
    i = j = 0
    while i < len(old) or j < len(new):
        first = i, j
        a, b = math.prod(old[i : i + 1]), math.prod(new[j : j + 1])
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while a != b:
            if a < b:
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        yield old[first[0] : i], new[first[1] : j]


def merges(old: Sequence[int], new: Sequence[int]) -> bool:
    """True if reshaping makes one axis of several."""
    return any(sum(extent > 1 for extent in before) > 1 for before, _ in groups_of(old, new))


def refined(old: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """The shape that splits the axes of both and merges none; None if there is none."""
    ends = sorted(
        {*itertools.accumulate(old, int.__mul__), *itertools.accumulate(new, int.__mul__)}
    )
    steps = list(itertools.pairwise([1, *ends]))
    return None if any(b % a for a, b in steps) else [b // a for a, b in steps]


def _joined(region: Region, extents: Sequence[int]) -> Index:
    """The places along one axis of what are places along the several that it is split into."""
    result: Index = ONE
    for index, extent in zip(region, extents, strict=True):
        if extent == 1:
            continue
        if length(result) == 1:
            first = result.start if isinstance(result, slice) else int(result[0])
            result = _shifted(index, first * extent)
        elif isinstance(result, slice) and isinstance(index, slice) and length(index) == extent:
            result = slice(result.start * extent, result.stop * extent)
        else:
            result = np.add.outer(_listed(result) * extent, _listed(index)).reshape(-1)
    return result


def _shifted(index: Index, by: int) -> Index:
    return slice(index.start + by, index.stop + by) if isinstance(index, slice) else index + by


def _listed(index: Index) -> Array:
    return np.arange(index.start, index.stop) if isinstance(index, slice) else index


def _boxes(index: Index, group: _Group) -> Iterator[tuple[Region, slice]]:
    """The boxes of the operand's axes that hold the places of a group, and where each belongs."""
    if group.repeats or not group.merges:
        yield tuple(ONE if extent == 1 else index for extent in group.old), slice(None)
        return
    assert isinstance(index, slice)
    done = 0
    for box in _boxes_of_stretch(index.start, index.stop, group.old):
        end = done + math.prod(lengths(box))
        yield box, slice(done, end)
        done = end


def _boxes_of_stretch(start: int, stop: int, extents: Sequence[int]) -> Iterator[Box]:
    """Cut a stretch of the elements of a shape, in their order, into boxes, in that order."""
    if len(extents) == 1:
        yield (slice(start, stop),)
        return
    inner = math.prod(extents[1:])
    while start < stop:
        row, begin = divmod(start, inner)
        if begin or stop - start < inner:  # a part of one row
            end = min(stop, (row + 1) * inner)
            for box in _boxes_of_stretch(begin, begin + end - start, extents[1:]):
                yield (slice(row, row + 1), *box)
        else:
            end = stop - (stop - start) % inner
            yield (slice(row, end // inner), *(slice(0, extent) for extent in extents[1:]))
        start = end
