"""Writing a strided array out in pieces, without ever building the whole of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.pool.buffer import Array

# A block of so many bytes down a column and so many elements along a row stays in the second-level
# cache while it is transposed. Each of its two copies should be long: NumPy gives up the GIL for
# each, and two threads that hand it to each other every few microseconds are slower than one.
_BLOCK_RUN = 512
_BLOCK_COLUMNS = 512
_SMALL = 4096  # elements that are not worth blocks
_LEAST_WRITE = 2048


@dataclass(frozen=True)
class ArrayTile:
    """A piece of an array: ``region`` in row-major order is ``nbytes`` bytes at ``offset``.

    Both are bytes of the tensor as ONNX stores it: little-endian, sub-byte elements packed.
    """

    region: Array
    dtype: ir.DataType
    offset: int
    nbytes: int
    rows: int = 1
    pitch: int = 0

    def read(self, out: Array) -> None:
        """Fill the uint8 array ``out`` of ``nbytes``. Thread-safe; NumPy releases the GIL."""
        if self.dtype.bitwidth < 8:
            packed = ir.Tensor(np.ascontiguousarray(self.region), dtype=self.dtype).tobytes()
            out[:] = np.frombuffer(packed, np.uint8)
            return
        copy_in_blocks(out.view(self.region.dtype).reshape(self.region.shape), self.region)


@dataclass(frozen=True)
class SlabTile:
    """Some columns of a transposed matrix: a stretch of rows of what it is a view of.

    Reading a large transposed matrix row by row touches all of its memory for every tile. Reading
    it in slabs touches each page once, and ``release`` gives the pages back.
    """

    region: Array
    offset: int
    nbytes: int
    rows: int
    pitch: int
    release: Callable[[Array], None]

    def read(self, out: Array) -> None:
        """Fill the uint8 array ``out`` of ``nbytes``, row after row of the region."""
        copy_in_blocks(out.view(self.region.dtype).reshape(self.region.shape), self.region)
        self.release(self.region)


def slabs_of(array: Array, nbytes: int, release: Callable[[Array], None]) -> Iterator[SlabTile]:
    """Cut a transposed matrix into groups of columns of about ``nbytes`` each.

    They are larger where that would leave less than a few KiB of each row, as every row is a write
    of its own.
    """
    rows, columns = array.shape
    width = max(_LEAST_WRITE // array.itemsize, nbytes // (rows * array.itemsize))
    for start in range(0, columns, width):
        region = array[:, start : start + width]
        yield SlabTile(
            region,
            start * array.itemsize,
            region.size * array.itemsize,
            rows,
            columns * array.itemsize,
            release,
        )


def is_transposed_matrix(array: Array) -> bool:
    """True if walking down a column is walking through memory."""
    return array.ndim == 2 and 0 < array.strides[0] == array.itemsize < abs(array.strides[1])


def tiles_of(array: Array, dtype: ir.DataType, nbytes: int) -> Iterator[ArrayTile]:
    """Cut an array of any strides into row-major tiles of about ``nbytes`` stored bytes each.

    A tile is a run of indices along one axis under fixed outer indices, so that its bytes are
    contiguous in the row-major result.
    """
    for box, offset, length in boxes_of(array.shape, dtype, nbytes):
        yield ArrayTile(array[box] if box else array, dtype, offset, length)


def boxes_of(
    shape: tuple[int, ...], dtype: ir.DataType, nbytes: int
) -> Iterator[tuple[tuple[slice, ...], int, int]]:
    """Cut a shape into boxes whose elements are contiguous in row-major order.

    Yields each box (a slice for every axis), its place and its length in stored bytes, the length
    about ``nbytes``: a run of indices along one axis under fixed outer indices.
    """
    if 0 in shape:
        return
    if not shape:
        yield (), 0, -(-dtype.bitwidth // 8)
        return
    itemsize = dtype.bitwidth / 8
    axis, inner = _split_axis(shape, itemsize, nbytes)
    rows = max(1, int(nbytes // max(1, inner * itemsize)))
    rows = -(-shape[axis] // -(-shape[axis] // rows))  # as many tiles, all of one size
    if dtype.bitwidth < 8:
        # elements share bytes: a tile must begin on one
        per_byte = 8 // dtype.bitwidth
        if inner % per_byte:
            axis, inner = 0, math.prod(shape[1:])
            rows = max(per_byte, rows // per_byte * per_byte)
    rest = tuple(slice(0, extent) for extent in shape[axis + 1 :])
    offset = 0
    for outer in np.ndindex(*shape[:axis]):
        before = tuple(slice(k, k + 1) for k in outer)
        for start in range(0, shape[axis], rows):
            stop = min(start + rows, shape[axis])
            size = -(-(stop - start) * inner * dtype.bitwidth // 8)
            yield (*before, slice(start, stop), *rest), offset, size
            offset += size


def _split_axis(shape: tuple[int, ...], itemsize: float, nbytes: int) -> tuple[int, int]:
    """The axis to run along, and the number of elements below one index of it."""
    inner = 1
    for axis in range(len(shape) - 1, 0, -1):
        if inner * shape[axis] * itemsize > nbytes:
            return axis, inner
        inner *= shape[axis]
    return 0, inner


def copy_in_blocks(target: Array, source: Array) -> None:
    """``target[...] = source`` for a contiguous target and a source of any strides.

    Where the source's fast axis is not the target's, a plain copy touches a new cache line for
    every element; walking in square blocks over the two axes uses each line fully.
    """
    if source.ndim < 2 or abs(source.strides[-1]) <= source.itemsize or source.size < _SMALL:
        np.copyto(target, source)
        return
    strides = [
        abs(stride) if extent > 1 and stride else math.inf
        for stride, extent in zip(source.strides, source.shape, strict=True)
    ]
    fast = strides.index(min(strides))
    last = source.ndim - 1
    if fast == last:
        np.copyto(target, source)
        return
    # move the two axes to the end: a view on both sides
    source = np.moveaxis(source, fast, -2)
    target = np.moveaxis(target, fast, -2)
    if source.ndim == 2:
        _transpose_blocks(target, source)
        return
    for outer in np.ndindex(*source.shape[:-2]):
        _transpose_blocks(target[outer], source[outer])


def _transpose_blocks(target: Array, source: Array) -> None:
    """``target[r, c] = source[r, c]`` where target is fast along c and source fast along r.

    A block goes through a small staging array: the strided side of the copy then walks memory with
    an odd stride, not one of a power of two bytes, which would map a whole column to one cache set.
    """
    rows, columns = source.shape
    if rows * columns < _SMALL:
        np.copyto(target, source)
        return
    height = min(rows, max(16, _BLOCK_RUN // source.itemsize))
    width = min(columns, _BLOCK_COLUMNS)
    pad = max(1, 16 // source.itemsize)
    staging = np.empty((width, height + pad), source.dtype)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            block = source[row : row + height, column : column + width]
            stage = staging[: block.shape[1], : block.shape[0]].T
            np.copyto(stage, block)
            np.copyto(target[row : row + height, column : column + width], stage)
