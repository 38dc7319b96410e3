"""Values whose elements are selected by lists of places: read from the operand where they lie."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.fused.joint import Move, Part, moved, without_repeats
from onnxfold.kernels.fused.places import (
    as_slice,
    between,
    gathered,
    in_ascending_order,
    is_dense,
    nested_order,
)
from onnxfold.kernels.layout import view_in_shape
from onnxfold.kernels.registry import Postpone
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Box
from onnxfold.pool.tiles import copy_in_blocks

# Lists of lists of places are made one list of up to this many places.
_LONGEST = 1 << 20
# So many bytes are read at a time where the pages of all could not stay.
_AT_A_TIME = 1 << 18
# Mapped pages are given back when this many bytes of them were touched, and not before.
KEPT_BYTES = 1 << 24
# The system may map so many bytes around a page that is touched.
_AROUND = 1 << 21
# Where places lie closer together than pages, a tile has many of them and reads them in order: each
# page is touched once a tile. So many at most (they take 32 bytes each), and so many bytes.
_PAGE = 1 << 12
_TILE_PLACES = 1 << 20
_TILE_BYTES = 1 << 24
_WINDOW = 1 << 23


class Indexed:
    """A :class:`~onnxfold.pool.source.Source`: an array read at lists of places along some axes.

    Args:
        base: The operand; no axis of the value for those that are read at places.
        tables: For each of these axes of ``base`` the places, integers of either sign.
        shape: Shape of the value.
        dtype: Its dtype.
        buffer: Whose elements ``base`` is a view of.
        lists: Whose elements the places are.
    """

    def __init__(
        self,
        base: Part,
        tables: Mapping[int, Part],
        shape: Sequence[int],
        dtype: ir.DataType,
        buffer: Buffer,
        lists: Collection[Buffer] = (),
    ) -> None:
        self._base = base
        self._tables = dict(tables)
        self.whole = tuple(shape)
        """The shape of the value, with what it repeats."""
        self._buffer = buffer
        self._lists = tuple(lists)
        self.dtype = dtype
        varying = {axis for part in (base, *tables.values()) for axis in part.axes}
        self.shape: tuple[int, ...] = tuple(
            extent if axis in varying or extent == 0 else 1 for axis, extent in enumerate(shape)
        )
        self.fast_axis = self._fast_axis()
        self._apart = self._axis_apart()
        self._touched = 0
        itemsize = base.array.itemsize
        self.read_bytes = base.array.nbytes
        self.least_tile = 0
        """Tiles should have so many bytes, or they would read the same pages again."""
        self.working_bytes = 0
        """What one thread needs besides the place of the result, bytes."""
        if self._apart is not None:
            each = max(1, self._bytes_at(self._apart))
            self.least_tile = min(
                _TILE_BYTES, _TILE_PLACES * each, math.prod(self.shape) * itemsize
            )
            self.working_bytes = 2 * self.least_tile + 32 * (self.least_tile // each) + _WINDOW

    @staticmethod
    def of(array: Array, dtype: ir.DataType, buffer: Buffer) -> Indexed:
        """A known buffer's elements, nothing selected yet."""
        base = without_repeats(Part(array, tuple(range(array.ndim))))
        return Indexed(base, {}, array.shape, dtype, buffer)

    # ------------------------------------------------------------ other views of it

    def selected(self, places: Sequence[Array | None], lists: Collection[Buffer] = ()) -> Indexed:
        """Select along the axes of the value. Raises Postpone where that takes too long a list.

        Args:
            places: For each axis the places, as in :class:`~onnxfold.kernels.selection.Picks`.
            lists: Buffers that these may be views of.
        """
        axes: list[range] = []
        shape: list[int] = []
        for extent, chosen in zip(self.whole, places, strict=True):
            extents = (extent,) if chosen is None else chosen.shape
            axes.append(range(len(shape), len(shape) + len(extents)))
            shape.extend(extents)
        tables: dict[int, Part] = {}
        for k, table in self._tables.items():
            array, new = table.array, list[int | None]()
            for place in range(array.ndim - 1, -1, -1):
                axis = table.axes[place]
                assert axis is not None
                chosen = places[axis]
                new[:0] = axes[axis]
                if chosen is not None:
                    if array.size // array.shape[place] * chosen.size > _LONGEST:
                        raise Postpone(shape, array.dtype)
                    array = np.take(array, chosen, axis=place)
            tables[k] = Part(array, tuple(new))
        base: list[int | None] = []
        for k, axis in enumerate(self._base.axes):
            chosen = None if axis is None else places[axis]
            if axis is None or chosen is not None:
                base.append(None)
            else:
                base.append(axes[axis][0])
            if axis is not None and chosen is not None:
                tables[k] = without_repeats(Part(chosen, tuple(axes[axis])))
        part = Part(self._base.array, tuple(base))
        lists = (*self._lists, *lists)
        return Indexed(part, tables, shape, self.dtype, self._buffer, lists)

    def moved(self, move: Move) -> Indexed:
        """Apply a view. Raises Postpone where strides do not express it."""
        tables = [self._tables[k] for k in sorted(self._tables)]
        (base, *tables), shape = moved([self._base, *tables], self.whole, move)
        # the axes of the base that are read at places come first now
        places = dict(enumerate(tables))
        return Indexed(base, places, shape, self.dtype, self._buffer, self._lists)

    def reshaped(self, shape: Sequence[int]) -> Indexed:
        """Split axes, or take together what lies so. Raises Postpone where strides do not."""

        def reshape(layout: Array) -> Array:
            view = view_in_shape(layout, shape)
            if view is None:
                raise Postpone(shape, self.dtype.numpy())
            return view

        return self.moved(reshape)

    def as_view(self) -> Array | None:
        """The same as a view of the operand's elements, if one place is selected of each axis."""
        if any(table.axes for table in self._tables.values()):
            return None
        places = {k: int(table.array.reshape(-1)[0]) for k, table in self._tables.items()}
        ranks = range(len(self._base.axes))
        view = np.asarray(self._base.array[tuple(places.get(k, slice(None)) for k in ranks)])
        return self._in_place(view, [axis for axis in self._base.axes if axis is not None])

    @property
    def kept_bytes(self) -> int:
        """Bytes of mapped pages that may stay in memory while some of it is read."""
        array = self._base.array
        apart = any(
            abs(array.strides[k]) > _PAGE and self._bytes_at(k) < _AROUND for k in self._tables
        )
        return min(array.nbytes, 2 * KEPT_BYTES) if apart else 0

    # ------------------------------------------------------------ reading

    def fill(self, box: Box, target: Array) -> None:
        """Read the elements in a box into ``target``."""
        if not self.take(box, target):
            copy_in_blocks(target, np.broadcast_to(self.read(box), target.shape))

    def take(self, box: Box, target: Array) -> bool:
        """Read straight into ``target`` if the order of the elements is that of the memory."""
        if self._apart is not None or len(self._tables) != 1 or not target.flags.c_contiguous:
            return False
        part, lists = self._within(box)
        ((axis, places),) = lists.items()
        shape = [places.size if k == axis else extent for k, extent in enumerate(part.shape)]
        if math.prod(shape) != target.size or not part.flags.c_contiguous:
            return False
        axes = self._axes()
        if axes != sorted(axes):
            return False
        # of pages here and there, only so many at a time
        count = places.size
        if math.prod(shape[:axis]) == 1:
            count = max(1, count * _AT_A_TIME // max(1, target.nbytes))
        out = target.reshape(shape).swapaxes(0, axis)
        for begin in range(0, places.size, count):
            some = places[begin : begin + count]
            run = as_slice(some)
            room = out[begin : begin + count].swapaxes(0, axis)
            if run is None:
                np.take(part, some, axis=axis, out=room, mode="clip")
            else:
                room[...] = part[(slice(None),) * axis + (run,)]
            self._note_pages(part, {axis: some})
        return True

    def read(self, box: Box) -> Array:
        """The elements in a box, in the order they have in memory; 1 element where they repeat."""
        part, lists = self._within(box)
        if self._apart is not None and self._apart in lists:
            block = self._in_order(part, lists, self._apart)
        else:
            block = gathered(part, lists)
            self._note_pages(part, lists)
        return self._as_value(block, box)

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that reading the box (or all) has touched."""
        for buffer in self._lists:
            if box is None or buffer.nbytes > KEPT_BYTES:
                buffer.release_pages()
        if box is None:
            self._buffer.release_pages()
        elif self._base.array.nbytes > KEPT_BYTES:
            part, lists = self._within(box)
            if not self._is_here_and_there(part, lists):
                part = between(part, lists)
                if is_dense(part):
                    self._buffer.release_pages(part)

    def _is_here_and_there(self, part: Array, lists: Mapping[int, Array]) -> bool:
        """True if only some of the pages between the first and the last place are touched."""
        for k, places in lists.items():
            if places.size and abs(part.strides[k]) > _PAGE:
                low, high = int(places.min()), int(places.max()) + 1
                if places.size * max(self._bytes_at(k), _AROUND) < (high - low) * abs(
                    part.strides[k]
                ):
                    return True
        return False

    def _note_pages(self, part: Array, lists: Mapping[int, Array]) -> None:
        """Count pages that are touched here and there, and give them back."""
        if self._base.array.nbytes <= KEPT_BYTES or not self._is_here_and_there(part, lists):
            return
        counts = [lists[k].size if k in lists else extent for k, extent in enumerate(part.shape)]
        touched = math.prod(
            count for count, stride in zip(counts, part.strides, strict=True) if abs(stride) > _PAGE
        )
        self._touched += touched * _AROUND
        if self._touched > KEPT_BYTES:
            self._touched = 0
            self._buffer.release_pages()

    def _within(self, box: Box) -> tuple[Array, dict[int, Array]]:
        """The base in a box, all of it along axes that are read at places, and the places."""
        within = [
            slice(0, 1) if extent == 1 else wanted
            for wanted, extent in zip(box, self.shape, strict=True)
        ]
        base = self._base
        part = base.array[tuple(slice(None) if a is None else within[a] for a in base.axes)]
        lists: dict[int, Array] = {}
        for k, table in self._tables.items():
            places = table.array[tuple(within[a] for a in table.axes if a is not None)]
            places = places.reshape(-1).astype(np.intp, copy=False)
            if places.size and places.min() < 0:
                places = np.where(places < 0, places + part.shape[k], places)
            lists[k] = places
        return part, lists

    def _in_order(self, part: Array, lists: Mapping[int, Array], axis: int) -> Array:
        """Read at places that lie far apart from the first to the last, not as they are listed."""
        places, order = in_ascending_order(lists[axis])
        extents = [lists[k].size if k in lists else n for k, n in enumerate(part.shape)]
        nested = nested_order(part)
        block: Array = np.empty([extents[k] for k in nested], part.dtype)
        block = block.transpose(np.argsort(nested))
        step = max(1, _WINDOW // abs(part.strides[axis]))
        # a view with the axis in front
        target, source = block.swapaxes(0, axis), part.swapaxes(0, axis)
        begin = 0
        while begin < places.size:
            first = int(places[begin])
            end = int(np.searchsorted(places, first + step))
            chunk = gathered(part, {**lists, axis: places[begin:end]})
            target[begin:end] = chunk.swapaxes(0, axis)
            window = source[first : int(places[end - 1]) + 1]
            if self._base.array.nbytes > KEPT_BYTES and is_dense(window):
                self._buffer.release_pages(window)
            begin = end
        back = np.empty_like(order)
        back[order] = np.arange(order.size)
        return gathered(block, {axis: back})

    def _as_value(self, block: Array, box: Box) -> Array:
        """What was read, with the axes of the value; of extent 1 where it repeats its elements."""
        axes = self._axes()
        return self._in_place(block.reshape([box[a].stop - box[a].start for a in axes]), axes)

    def _axes(self) -> list[int]:
        """The axes of the value in the order of the base's."""
        every = [self._axes_of(k) for k in range(self._base.array.ndim)]
        return [axis for axes in every for axis in axes if axis is not None]

    def _axes_of(self, k: int) -> tuple[int | None, ...]:
        """The axes of the value that axis ``k`` of the base varies along."""
        return self._tables[k].axes if k in self._tables else self._base.axes[k : k + 1]

    def _in_place(self, array: Array, axes: Sequence[int]) -> Array:
        """Put each axis in its place among those of the value."""
        array = array.transpose(np.argsort(axes)) if axes else array
        present = set(axes)
        index = tuple(slice(None) if a in present else None for a in range(len(self.shape)))
        return np.asarray(array[index])

    # ------------------------------------------------------------ how it lies in memory

    def _fast_axis(self) -> int:
        strides = self._base.array.strides
        for k in sorted(range(len(strides)), key=lambda k: abs(strides[k])):
            axes = self._axes_of(k)
            if axes and axes[-1] is not None:
                return axes[-1]
        return max(0, len(self.shape) - 1)

    def _bytes_at(self, axis: int) -> int:
        """Bytes that one place along an axis of the base is in the middle of."""
        array = self._base.array
        inner: list[int] = [
            extent
            for extent, stride in zip(array.shape, array.strides, strict=True)
            if abs(stride) < abs(array.strides[axis])
        ]
        return math.prod(inner) * array.itemsize

    def _axis_apart(self) -> int | None:
        """The axis of the base whose places lie closer together than pages, but all over it."""
        array = self._base.array
        spans = {
            abs(array.strides[k]) * array.shape[k]: k
            for k in self._tables
            if self._bytes_at(k) < _PAGE
        }
        largest = max(spans, default=0)
        return spans[largest] if largest > 2 * _WINDOW else None
