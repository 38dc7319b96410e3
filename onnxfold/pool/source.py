"""Arrays that are computed box by box, and the tiles in which their stored bytes are written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from onnxfold.pool.buffer import Array
from onnxfold.pool.tiles import boxes_of

Box = tuple[slice, ...]

WORKING_BYTES = 1 << 19
"""What a thread needs to compute a box, besides the place of the result."""

# A stretch of a row shorter than this many bytes is not worth a system call of its own.
_LEAST_STRETCH = 2048
# A column of what lies in memory along it is read in runs of at least this many bytes: pages.
_LEAST_RUN = 8192


class TileSource(Protocol):
    """Elements that come into being where they are wanted: no array holds them all.

    Any box of them can be computed, by several threads at once. ``shape`` is one in which the
    elements have the row-major order of the tensor; its axes need not be the tensor's.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents; at least one axis."""
        ...

    @property
    def dtype(self) -> ir.DataType:
        """The element type."""
        ...

    @property
    def fast_axis(self) -> int:
        """The axis along which most of what is read lies in memory."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes of what it is computed from."""
        ...

    @property
    def least_tile(self) -> int:
        """Bytes below which a tile reads the same pages as the ones before it; 0 if none does."""
        ...

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in the box (start and stop of every axis) into ``target``."""
        ...

    def release(self) -> None:
        """Give back the mapped pages that computing has touched and that are still there."""
        ...


@dataclass(frozen=True)
class BoxTile:
    """A box of a source: ``rows`` stretches of its stored bytes, ``pitch`` bytes apart."""

    source: TileSource
    box: Box
    offset: int
    nbytes: int
    rows: int = 1
    pitch: int = 0

    def read(self, out: Array) -> None:
        """Fill the uint8 array ``out`` of ``nbytes``. Thread-safe; NumPy releases the GIL."""
        dtype = self.source.dtype
        shape = tuple(s.stop - s.start for s in self.box)
        if dtype.bitwidth < 8:
            unpacked = np.empty(shape, dtype.numpy())
            self.source.fill(self.box, unpacked)
            packed = ir.Tensor(unpacked, dtype=dtype).tobytes()
            out[:] = np.frombuffer(packed, np.uint8)
        else:
            self.source.fill(self.box, out.view(dtype.numpy()).reshape(shape))


def tiles(source: TileSource, nbytes: int, slab: int) -> Iterator[BoxTile]:
    """Cut a source into tiles that cover its stored bytes.

    Args:
        source: What is to be stored.
        nbytes: Length of a tile that is one stretch, bytes.
        slab: Length of a tile of many stretches, where the source is transposed, bytes; 0 to have
            tiles of one stretch only.
    """
    dtype, shape = source.dtype, source.shape
    if slab and is_across(source):
        yield from _slabs(source, slab)
        return
    for box, offset, length in boxes_of(shape, dtype, max(nbytes, source.least_tile)):
        yield BoxTile(source, box, offset, length)


def is_across(source: TileSource) -> bool:
    """True if what is read lies across the rows that are written, so that slabs are better."""
    return source.dtype.bitwidth >= 8 and source.fast_axis < len(source.shape) - 1


def _slabs(source: TileSource, nbytes: int) -> Iterator[BoxTile]:
    """Boxes as long as possible along the fast axis, over some indices of the one behind it.

    Reading row by row would touch each page of what lies across once for every few rows.
    """
    shape, axis = source.shape, source.fast_axis
    itemsize = source.dtype.numpy().itemsize
    inner = math.prod(shape[axis + 2 :]) * itemsize
    pitch = shape[axis + 1] * inner
    rows, width = shape[axis], shape[axis + 1]
    if rows * pitch > nbytes:
        least = min(width, -(-_LEAST_STRETCH // inner))
        width = min(width, max(least, nbytes // (rows * inner)))
        rows = min(rows, max(nbytes // (width * inner), _LEAST_RUN // itemsize))
    rest = tuple(slice(0, extent) for extent in shape[axis + 2 :])
    base = 0
    for outer in np.ndindex(*shape[:axis]):
        before = tuple(slice(k, k + 1) for k in outer)
        for column in range(0, shape[axis + 1], width):
            columns = slice(column, min(column + width, shape[axis + 1]))
            for row in range(0, shape[axis], rows):
                along = slice(row, min(row + rows, shape[axis]))
                count = along.stop - along.start
                yield BoxTile(
                    source,
                    (*before, along, columns, *rest),
                    base + row * pitch + column * inner,
                    count * (columns.stop - columns.start) * inner,
                    count,
                    pitch,
                )
        base += shape[axis] * pitch
