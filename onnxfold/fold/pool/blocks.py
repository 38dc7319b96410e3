"""Blocks of large values, for computing and for writing."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from onnxfold.fold.pool.buffer import Array, Buffer, byte_bounds
from onnxfold.ir.storage import Tile, data_bytes

Box = tuple[slice, ...]

LARGE = 1 << 26
"""Bytes above which the pages of a value that is read across its rows cannot all stay."""
SLAB = 1 << 24
"""Bytes of the blocks in which such a value is read."""
WORKING_BYTES = 1 << 19
"""What a thread needs to compute a block, besides the place of the result."""
KEPT_BYTES = 1 << 22
"""Bytes of mapped pages that are read before they are given back."""

# A stretch of a row shorter than this many bytes is not worth a system call of its own.
_LEAST_WRITE = 2048
# What is copied at a time where rows and columns change places. Both sides should be long: a cache
# line is used fully, and threads hand each other the GIL for each copy.
_COPIED = 1 << 18
_COLUMNS = 512
_SMALL = 4096  # elements below which a copy is not cut into blocks


class Source(Protocol):
    """Elements of which several threads can read any box at once."""

    shape: tuple[int, ...]
    """Extents of at least one axis, in row-major order; the axes need not be those of the value."""
    dtype: ir.DataType
    fast_axis: int
    """The axis along which most of what is read lies in memory."""
    read_bytes: int
    """Bytes of what it is computed from."""

    def fill(self, box: Box, target: Array) -> None:
        """Put the elements in a box into ``target``, an array of its shape and any strides."""
        ...

    def release(self) -> None:
        """Release the mapped pages that reading has touched."""
        ...


class ArraySource:
    """The elements of an array with any strides; mapped pages of its buffer are released."""

    def __init__(self, array: Array, dtype: ir.DataType, buffer: Buffer | None = None) -> None:
        self._buffer = buffer
        self._array = np.atleast_1d(array)
        self.shape: tuple[int, ...] = self._array.shape
        self.dtype = dtype
        self.read_bytes = distance(self._array)
        self.fast_axis = fast_axis(self._array)

    def fill(self, box: Box, target: Array) -> None:
        """Copy the elements in a box."""
        part = self._array[box]
        copy(target, part)
        # pages that other blocks read, too, stay
        is_large = self.read_bytes > LARGE and distance(part) <= 4 * part.nbytes
        if is_large and self._buffer is not None:
            self._buffer.release_pages(part)

    def release(self) -> None:
        """Release the mapped pages."""
        if self._buffer is not None:
            self._buffer.release_pages()


def blocks_of(source: Source, nbytes: int, slab: int = 0) -> Iterator[Tile]:
    """Cut a source into blocks that cover its stored bytes once.

    A block is one segment of ``nbytes``. If what is read lies across the rows and is too large for
    its pages to stay, it is many segments, ``slab`` bytes together; 0 for single ones, in order.
    """
    shape = source.shape
    dtype = source.dtype
    bits = dtype.bitwidth
    fast = None
    is_across = bits >= 8 and source.fast_axis < len(shape) - 1
    if slab and is_across and max(source.read_bytes, data_bytes(dtype, shape)) > LARGE:
        fast = source.fast_axis
        nbytes = slab
    for box in boxes(shape, nbytes * 8 // bits, fast, _LEAST_WRITE * 8 // bits, max(1, 8 // bits)):
        offset = 0
        count = 1
        inner = 1
        rows = 1
        pitch = 0
        for axis in range(len(shape) - 1, -1, -1):
            start = box[axis].start
            length = box[axis].stop - box[axis].start
            offset += start * inner
            if length > 1 and inner > count:
                rows = length
                pitch = inner
            else:
                count *= length
            inner *= shape[axis]
        stored = data_bytes(dtype, [count])
        read = functools.partial(_read, source, box)
        yield Tile(offset * bits // 8, stored * rows, read, rows, pitch * bits // 8)


def _read(source: Source, box: Box, out: Array) -> None:
    """Fill a uint8 array with the stored bytes of a box."""
    dtype = source.dtype
    shape = tuple(s.stop - s.start for s in box)
    if dtype.bitwidth < 8:
        unpacked = np.empty(shape, dtype.numpy())
        source.fill(box, unpacked)
        out[:] = np.frombuffer(ir.Tensor(unpacked, dtype=dtype).tobytes(), np.uint8)
    else:
        source.fill(box, out.view(dtype.numpy()).reshape(shape))


def boxes(
    shape: Sequence[int], limit: int, fast: int | None = None, run: int = 0, unit: int = 1
) -> Iterator[Box]:
    """Cut a shape into boxes of about ``limit`` elements.

    Without a fast axis, or where it is the last one, the elements of a box follow each other in
    row-major order, and so do the boxes. Else a box is long along the fast axis as well as along
    the last ones, of which it takes at least ``run`` elements. Boxes begin at a multiple of
    ``unit`` elements, and have at least so many.
    """
    if 0 in shape:
        return
    if math.prod(shape) <= limit:
        yield tuple(map(slice, (0,) * len(shape), shape))
        return
    last = len(shape) - 1
    sizes = [1] * len(shape)

    def grow(axis: int, most: int) -> None:
        room = most // math.prod(sizes)
        if room > 1:
            sizes[axis] = min(shape[axis], sizes[axis] * room)

    if fast is not None and fast < last:
        for axis in range(last, fast, -1):
            grow(axis, run)
        grow(fast, limit)
    for axis in range(last, -1, -1):
        grow(axis, limit)
    if unit > 1:
        inner = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        pairs = zip(sizes, shape, inner, strict=True)
        if any(size < extent and size * below % unit for size, extent, below in pairs):
            sizes = [max(1, limit // inner[0] // unit) * unit, *shape[1:]]
    order = [axis for axis in range(len(shape)) if axis != fast]
    order += [] if fast is None else [fast]
    for turn in np.ndindex(*(-(-shape[axis] // sizes[axis]) for axis in order)):
        box = [slice(0, 0)] * len(shape)
        for axis, k in zip(order, turn, strict=True):
            start = k * sizes[axis]
            box[axis] = slice(start, min(start + sizes[axis], shape[axis]))
        yield tuple(box)


def distance(array: Array) -> int:
    """Return the bytes from the first element of a view in memory to the last."""
    low, high = byte_bounds(array)
    return high - low if array.size else 0


def fast_axis(array: Array) -> int:
    """Return the axis with the shortest steps through memory; the last where there are several."""
    found = max(array.ndim - 1, 0)
    least = math.inf
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        if extent > 1 and 0 < abs(stride) <= least:
            found = axis
            least = abs(stride)
    return found


def copy(target: Array, source: Array) -> None:
    """``target[...] = source`` for any strides of both, broadcast.

    Where the fast axes of the two differ, a plain copy touches a new cache line for every element.
    Blocks use each line fully, through an array whose rows are no power of two bytes apart: that
    would map a whole column to one set of the cache.
    """
    if source.size < _SMALL or source.shape != target.shape:
        np.copyto(target, source)
        return
    fast = fast_axis(source)
    other = fast_axis(target)
    if fast == other or abs(source.strides[other]) <= source.itemsize:
        np.copyto(target, source)
        return
    # a view with the axes of the target in the order of its memory
    order = sorted(range(target.ndim), key=lambda k: -abs(target.strides[k]))
    target, source = target.transpose(order), source.transpose(order)
    fast = order.index(fast)
    pad = max(1, 16 // source.itemsize)
    room = np.empty(0, source.dtype)
    for box in boxes(source.shape, _COPIED // source.itemsize, fast, _COLUMNS):
        part = np.moveaxis(source[box], fast, -1)
        shape = (*part.shape[:-1], part.shape[-1] + pad)
        if room.size < math.prod(shape):
            room = np.empty(math.prod(shape), source.dtype)
        stage = room[: math.prod(shape)].reshape(shape)[..., :-pad]
        np.copyto(stage, part)
        np.copyto(target[box], np.moveaxis(stage, -1, fast))
