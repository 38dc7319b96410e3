"""Sources: values of which any region can be computed from regions of their operands."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import broadcast_shape
from onnxfold.kernels.streams.regions import (
    Region,
    along,
    as_slice,
    cuts,
    lengths,
    view_at,
    within,
)
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Box
from onnxfold.pool.tiles import copy_in_blocks

# What one step reads and writes at a time, bytes each: a few of them fit the second-level cache.
PIECE_BYTES = 1 << 17
# What else is done at a time, bytes.
BLOCK_BYTES = 1 << 18
# Where rows and columns change places, a piece has this many elements along the row.
_COLUMNS = 64
# Mapped pages are given back when so many bytes of them were read, and not before.
KEPT_BYTES = 1 << 22
# The system maps more around a page that is touched: 64 KiB, of some files up to 2 MiB.
_AROUND = 1 << 19


class Source:
    """A value of which any region can be computed, by several threads at once.

    A subclass overrides :meth:`read`, or :meth:`fill`, or both.

    Attributes:
        shape: Shape of the value, with extent 1 along axes where it repeats its elements.
        dtype: Its dtype.
        fast_axis: The axis along which most of what is read lies in memory.
        piece_bytes: How much is computed at a time.
    """

    shape: tuple[int, ...]
    dtype: ir.DataType
    fast_axis: int
    piece_bytes = BLOCK_BYTES

    def read(self, region: Region) -> Array:
        """The elements in a region, which is ``slice(0, 1)`` along axes of extent 1.

        Returns:
            An array of the region's shape that nobody writes to.
        """
        target = np.empty(lengths(region), self.dtype.numpy())
        self.fill(region, target)
        return target

    def fill(self, region: Region, target: Array) -> None:
        """Compute the elements in a region into ``target``, of its shape and any strides."""
        sizes = self._sizes(target, max(1, self.piece_bytes // target.itemsize))
        for piece, place in cuts(region, sizes, self.fast_axis):
            copy(view_at(target, place), self.read(piece))

    def _sizes(self, target: Array, limit: int) -> list[int]:
        """Extents of pieces of so many elements."""
        extents = target.shape
        sizes = [1] * len(extents)
        if not extents:
            return sizes
        order = outer_to_inner(target)
        last = order[-1]
        if self.fast_axis != last and target.size > limit:
            # both the runs that are read and those that are written should be long
            sizes[last] = min(extents[last], _COLUMNS)
            sizes[self.fast_axis] = min(extents[self.fast_axis], max(1, limit // sizes[last]))
        for axis in reversed(order):
            room = limit // math.prod(sizes)
            if room <= 1:
                break
            sizes[axis] = min(extents[axis], sizes[axis] * room)
        return sizes


class Pages:
    """The mapped pages that the leaves of one stream have touched.

    Attributes:
        nbytes: Bytes of all that the leaves may read.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._buffers: set[Buffer] = set()
        self._touched = 0
        self._lock = threading.Lock()

    def note(self, buffer: Buffer | None, nbytes: int) -> None:
        """So many bytes of pages are going to be touched: give back the others if it is time."""
        if buffer is None:
            return
        with self._lock:
            self._touched += nbytes
            is_time = self._touched > KEPT_BYTES
            if is_time:
                self._touched = nbytes
                self._release()
            self._buffers.add(buffer)

    def release(self) -> None:
        """Give back all of them."""
        with self._lock:
            self._touched = 0
            self._release()

    def _release(self) -> None:
        for buffer in self._buffers:
            buffer.release_pages()
        self._buffers.clear()


class Leaf(Source):
    """The elements of an array.

    Args:
        array: The elements.
        dtype: Their dtype.
        pages: Counts what is read, if it is of a buffer.
        buffer: Whose elements they are.
    """

    def __init__(
        self, array: Array, dtype: ir.DataType, pages: Pages, buffer: Buffer | None = None
    ) -> None:
        repeats = [
            slice(0, 1) if extent > 1 and stride == 0 else slice(None)
            for extent, stride in zip(array.shape, array.strides, strict=True)
        ]
        self._array = view_at(array, repeats)
        self._buffer = buffer
        self._pages = pages
        pages.nbytes += self._array.nbytes
        self.shape = self._array.shape
        self.dtype = dtype
        self.fast_axis = outer_to_inner(self._array)[-1] if self.shape else 0

    def read(self, region: Region) -> Array:
        """The elements in a region: a view if it has no list of places."""
        part, lists = self._at(region)
        if not lists:
            # of pages that are read across, the rest is wanted soon
            is_dense = _span(part) <= 4 * part.nbytes
            self._pages.note(self._buffer, part.nbytes if is_dense else part.nbytes // 4)
            return part
        target = np.empty(lengths(region), part.dtype)
        self._gather(part, lists, target)
        return target

    def fill(self, region: Region, target: Array) -> None:
        """Copy the elements in a region into ``target``."""
        part, lists = self._at(region)
        if lists:
            self._gather(part, lists, target)
        else:
            super().fill(region, target)

    def _at(self, region: Region) -> tuple[Array, dict[int, Array]]:
        """All that lies in a region along axes without lists of places, and these lists."""
        index: list[slice] = []
        lists: dict[int, Array] = {}
        for axis, places in enumerate(region):
            run = places if isinstance(places, slice) else as_slice(places)
            if run is None:
                assert not isinstance(places, slice)
                lists[axis] = places
            index.append(slice(None) if run is None else run)
        return view_at(self._array, index), lists

    def _gather(self, part: Array, lists: dict[int, Array], target: Array) -> None:
        """Read at places, in the order of the memory where not all their pages may stay."""
        axis = max(lists, key=lambda k: abs(part.strides[k]))
        places = lists[axis]
        touched = part.nbytes // part.shape[axis] + _AROUND
        most = max(1, KEPT_BYTES // touched)
        span = _span(part)
        if places.size <= most or span <= KEPT_BYTES:
            self._pages.note(self._buffer, min(places.size * touched, span))
            _take(part, lists, target)
            return
        order = np.argsort(places)
        ahead = 2 * KEPT_BYTES * part.shape[axis] // span
        begin = 0
        while begin < places.size:
            near = np.searchsorted(places, places[order[begin]] + ahead, sorter=order)
            some = order[begin : max(begin + most, int(near))]
            self._pages.note(self._buffer, min(some.size * touched, KEPT_BYTES))
            shape = (*target.shape[:axis], some.size, *target.shape[axis + 1 :])
            room = np.empty(shape, target.dtype)
            _take(part, {**lists, axis: places[some]}, room)
            target[along(axis, some)] = room
            begin += some.size


def _take(part: Array, lists: dict[int, Array], target: Array) -> None:
    """Copy what is at places along some axes, in the order in which it lies in memory."""
    order = outer_to_inner(part)
    part, target = part.transpose(order), target.transpose(order)
    lists = {k: lists[axis] for k, axis in enumerate(order) if axis in lists}
    if len(lists) > 1:
        every = [lists.get(k, np.arange(extent)) for k, extent in enumerate(part.shape)]
        copy(target, part[np.ix_(*every)])
        return
    ((axis, places),) = lists.items()
    if part.flags.c_contiguous and target.flags.c_contiguous:
        np.take(part, places, axis=axis, out=target, mode="clip")
    else:  # np.take would copy all of it first
        copy(target, part[along(axis, places)])


def _span(part: Array) -> int:
    """Bytes from the first element in memory to the last."""
    return int(
        sum((n - 1) * abs(s) for n, s in zip(part.shape, part.strides, strict=True)) + part.itemsize
    )


def outer_to_inner(array: Array) -> list[int]:
    """The axes, from that with the longest steps through memory to that with the shortest."""
    return sorted(range(array.ndim), key=lambda k: -abs(array.strides[k]))


def copy(target: Array, source: Array) -> None:
    """``target[...] = source`` for any strides of both."""
    order = outer_to_inner(target)
    source = np.broadcast_to(source, target.shape)
    copy_in_blocks(target.transpose(order), source.transpose(order))


@dataclass(frozen=True)
class Step:
    """``call`` of the slots ``operands`` (None where omitted) gives the next slot.

    Slots are the operands of the group, then the results of the steps before. ``last_uses`` are
    those that no later step reads.
    """

    call: Callable[..., Any]
    operands: tuple[int | None, ...]
    itemsize: int
    last_uses: tuple[int, ...] = ()


class ElementWise(Source):
    """Element-wise work, all steps on one piece after the other: nothing between them is stored.

    Args:
        operands: What is computed from; broadcast to the result, aligned at the last axis.
        steps: The work in order; the last step gives the result.
        dtype: That of the result.
    """

    def __init__(
        self, operands: Sequence[Source], steps: Sequence[Step], dtype: ir.DataType
    ) -> None:
        self._operands = operands
        self._steps = _with_last_uses(steps)
        self.shape = broadcast_shape(*(operand.shape for operand in operands))
        self.dtype = dtype
        largest = max(operands, key=lambda operand: math.prod(operand.shape))
        self.fast_axis = largest.fast_axis + len(self.shape) - len(largest.shape)
        widest = max(
            *(step.itemsize for step in steps),
            *(operand.dtype.numpy().itemsize for operand in operands),
        )
        self.piece_bytes = PIECE_BYTES * dtype.numpy().itemsize // widest

    def read(self, region: Region) -> Array:
        """The elements in a region, computed at once if they are few."""
        if math.prod(lengths(region)) * self.dtype.numpy().itemsize > self.piece_bytes:
            return super().read(region)
        slots: list[Array | None] = [o.read(within(region, o.shape)) for o in self._operands]
        for step in self._steps:
            slots.append(step.call(*(None if k is None else slots[k] for k in step.operands)))
            for k in step.last_uses:
                slots[k] = None
        return np.asarray(slots[-1])


def _with_last_uses(steps: Sequence[Step]) -> list[Step]:
    seen: set[int] = set()
    result: list[Step] = []
    for step in reversed(steps):
        last = {k for k in step.operands if k is not None and k not in seen}
        seen |= last
        result.append(Step(step.call, step.operands, step.itemsize, tuple(last)))
    return result[::-1]


class Stream:
    """A source as the pool wants it: :class:`onnxfold.pool.source.TileSource`.

    Args:
        source: What computes the elements.
        shape: Their shape, to which the source is broadcast.
        pages: The pages that its leaves touch.
        first: At which index of the first axis the elements begin.
        least_tile: Bytes below which a box reads the same pages as others; 0 if none does.
    """

    def __init__(
        self,
        source: Source,
        shape: Sequence[int],
        pages: Pages,
        first: int = 0,
        least_tile: int = 0,
    ) -> None:
        self._source = source
        self._pages = pages
        self._first = first
        self.shape = tuple(shape) or (1,)
        self.dtype = source.dtype
        self.read_bytes = pages.nbytes
        self.least_tile = least_tile
        self.fast_axis = source.fast_axis if source.shape else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as an array."""
        return math.prod(self.shape) * self.dtype.numpy().itemsize

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``, an array of its shape and any strides."""
        source = self._source
        rows = slice(box[0].start + self._first, box[0].stop + self._first)
        region = within((rows, *box[1:]), source.shape)
        with np.errstate(all="ignore"):  # threads have settings of their own
            if lengths(region) == target.shape:
                source.fill(region, target)
            else:
                copy(target, source.read(region))

    def rows(self, start: int, stop: int) -> Stream:
        """The same elements at some indices of the first axis."""
        return Stream(
            self._source, (stop - start, *self.shape[1:]), self._pages, self._first + start
        )

    def release(self) -> None:
        """Give back the mapped pages that computing has touched."""
        self._pages.release()
