"""The division of large values into blocks for computing and writing."""

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
"""Values with more bytes are read in larger blocks (`SLAB`) if they are read across their rows.

If an array has more bytes, its mapped pages are released after each dense block."""
SLAB = 1 << 24
"""Maximum bytes of a block of a value above `LARGE` that is read across its rows."""
WORKING_BYTES = 1 << 19
"""Bytes of working memory that a thread needs to compute a block, without the result."""
KEPT_BYTES = 1 << 22
"""Number of bytes of mapped pages that are read before the pages are released."""

# Approximate bytes of the shortest contiguous segment in a file. Each segment needs a system call.
_MIN_SEGMENT_BYTES = 2048
# Bytes and columns of a block that is copied with rows and columns exchanged. Both sides are long,
# so that copies use complete cache lines and few copies contend for the GIL.
_COPY_BYTES = 1 << 18
_COPY_COLUMNS = 512
# Arrays with fewer elements are copied in one step.
_MIN_BLOCKED_SIZE = 4096
# Bytes by which the rows of the intermediate array of a copy are padded.
_PADDING_BYTES = 16


class Source(Protocol):
    """The elements of a value. Several threads can read boxes of the elements concurrently."""

    shape: tuple[int, ...]
    """The extents of at least one axis. The value itself may have another shape."""
    dtype: ir.DataType
    fast_axis: int
    """The axis along which most of the data that is read is contiguous in memory."""
    read_bytes: int
    """Bytes of the data from which the elements are computed."""

    def fill(self, box: Box, target: Array) -> None:
        """Write the elements in a box into ``target``, an array of its shape with any strides."""
        ...

    def release(self) -> None:
        """Release the mapped pages that were read."""
        ...


class ArraySource:
    """A source of the elements of an array with any strides.

    The source releases the mapped pages of ``buffer``, which contains the array.
    """

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
        # a part that is spread over many pages shares these pages with other blocks
        is_large = self.read_bytes > LARGE and distance(part) <= 4 * part.nbytes
        if is_large and self._buffer is not None:
            self._buffer.release_pages(part)

    def release(self) -> None:
        """Release the mapped pages of the buffer."""
        if self._buffer is not None:
            self._buffer.release_pages()


def blocks_of(source: Source, nbytes: int, slab: int = 0) -> Iterator[Tile]:
    """Divide a source into blocks that cover its stored bytes once.

    A block is one segment of about ``nbytes`` bytes. If the source is read across its rows and has
    more than `LARGE` bytes, a block has many segments with about ``slab`` bytes together. If
    ``slab`` is 0, all blocks are single segments in order.
    """
    shape = source.shape
    dtype = source.dtype
    bits = dtype.bitwidth
    fast = None
    is_across = bits >= 8 and source.fast_axis < len(shape) - 1
    if slab and is_across and max(source.read_bytes, data_bytes(dtype, shape)) > LARGE:
        fast = source.fast_axis
        nbytes = slab
    for box in boxes(
        shape, nbytes * 8 // bits, fast, _MIN_SEGMENT_BYTES * 8 // bits, max(1, 8 // bits)
    ):
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
        segment_bytes = data_bytes(dtype, [count])
        read = functools.partial(_read_box, source, box)
        yield Tile(offset * bits // 8, segment_bytes * rows, read, rows, pitch * bits // 8)


def _read_box(source: Source, box: Box, out: Array) -> None:
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
    shape: Sequence[int], limit: int, fast: int | None = None, min_row: int = 0, alignment: int = 1
) -> Iterator[Box]:
    """Divide a shape into boxes of about ``limit`` elements.

    If ``fast`` is None or the last axis, the boxes and the elements of each box are contiguous in
    row-major order. Otherwise, a box has about ``min_row`` elements along the axes after ``fast``
    if these axes are long enough, and is long along ``fast``. Boxes begin at a multiple of
    ``alignment`` elements. All boxes except the last have at least ``alignment`` elements. A
    shape with an extent of 0 has no boxes.
    """
    if 0 in shape:
        return
    if math.prod(shape) <= limit:
        yield tuple(map(slice, (0,) * len(shape), shape))
        return
    last = len(shape) - 1
    sizes = [1] * len(shape)

    def grow(axis: int, max_elements: int) -> None:
        factor = max_elements // math.prod(sizes)
        if factor > 1:
            sizes[axis] = min(shape[axis], sizes[axis] * factor)

    if fast is not None and fast < last:
        for axis in range(last, fast, -1):
            grow(axis, min_row)
        grow(fast, limit)
    for axis in range(last, -1, -1):
        grow(axis, limit)
    if alignment > 1:
        inner = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        pairs = zip(sizes, shape, inner, strict=True)
        if any(size < extent and size * below % alignment for size, extent, below in pairs):
            sizes = [max(1, limit // inner[0] // alignment) * alignment, *shape[1:]]
    order = [axis for axis in range(len(shape)) if axis != fast]
    order += [] if fast is None else [fast]
    for position in np.ndindex(*(-(-shape[axis] // sizes[axis]) for axis in order)):
        box = [slice(0, 0)] * len(shape)
        for axis, k in zip(order, position, strict=True):
            start = k * sizes[axis]
            box[axis] = slice(start, min(start + sizes[axis], shape[axis]))
        yield tuple(box)


def distance(array: Array) -> int:
    """Return the number of bytes from the first to the last address of a view."""
    low, high = byte_bounds(array)
    return high - low if array.size else 0


def fast_axis(array: Array) -> int:
    """Return the axis with the smallest stride; the last such axis if several strides are equal.

    Axes with extent 1 or stride 0 are ignored. If all axes are ignored, the last axis is returned.
    """
    fast = max(array.ndim - 1, 0)
    min_stride = math.inf
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        if extent > 1 and 0 < abs(stride) <= min_stride:
            fast = axis
            min_stride = abs(stride)
    return fast


def copy(target: Array, source: Array) -> None:
    """Copy elements with broadcasting and any strides, as ``target[...] = source``.

    If the fast axes of the two arrays differ, a plain copy touches a new cache line for every
    element. Copying blocks through an intermediate array uses each cache line fully. The rows of
    the intermediate array are padded. With a stride of a power of two, all elements of a column
    would map to the same cache set.
    """
    if source.size < _MIN_BLOCKED_SIZE or source.shape != target.shape:
        np.copyto(target, source)
        return
    fast = fast_axis(source)
    other = fast_axis(target)
    if fast == other or abs(source.strides[other]) <= source.itemsize:
        np.copyto(target, source)
        return
    # order the axes by the strides of the target
    order = sorted(range(target.ndim), key=lambda k: -abs(target.strides[k]))
    target = target.transpose(order)
    source = source.transpose(order)
    fast = order.index(fast)
    pad = max(1, _PADDING_BYTES // source.itemsize)
    memory = np.empty(0, source.dtype)
    for box in boxes(source.shape, _COPY_BYTES // source.itemsize, fast, _COPY_COLUMNS):
        part = np.moveaxis(source[box], fast, -1)
        shape = (*part.shape[:-1], part.shape[-1] + pad)
        size = math.prod(shape)
        if memory.size < size:
            memory = np.empty(size, source.dtype)
        intermediate = memory[:size].reshape(shape)[..., :-pad]
        np.copyto(intermediate, part)
        np.copyto(target[box], np.moveaxis(intermediate, -1, fast))
