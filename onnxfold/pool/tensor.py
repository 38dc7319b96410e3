"""A buffer as a tensor of the output model: the one place where a value is materialized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxfold.onnx_ir_private import TensorBase
from onnxfold.pool.buffer import Array, Buffer
from onnxfold.pool.parallel import THREADS
from onnxfold.pool.source import WORKING_BYTES, BoxTile, TileSource, is_across, tiles
from onnxfold.pool.tiles import (
    ArrayTile,
    SlabTile,
    is_transposed_matrix,
    slabs_of,
    tiles_of,
)

if TYPE_CHECKING:
    from onnxfold.storage import Span

_STREAM = 1 << 20
# A transposed matrix above this many bytes is read in slabs of so many: its pages cannot all stay.
# So is what is computed of as many, however little it may be.
LARGE = 1 << 26
SLAB = 1 << 24


class BufferTensor(TensorBase):
    """An ``onnx_ir`` tensor whose elements are a buffer: strided, mapped, or still to be computed.

    Saving streams it tile by tile into its place in the file. It keeps its buffer until it is
    garbage itself, so a model can be saved more than once and used in Python in between.
    """

    __slots__ = ("_buffer", "_source", "_working")

    def __init__(self, buffer: Buffer, name: str | None = None) -> None:
        super().__init__(name=name)
        self._buffer = buffer
        self._shape: ir.Shape | None = None
        self._source: TileSource | None = None
        self._working = 0
        buffer.pool.retain(buffer)
        buffer.pool.statistics.materialized += 1

    @property
    def buffer(self) -> Buffer:
        """The buffer that holds the elements."""
        return self._buffer

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]
        """ONNX element type."""
        return self._buffer.dtype

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]
        """Shape of the tensor."""
        if self._shape is None:
            self._shape = ir.Shape(self._buffer.shape, frozen=True)
        return self._shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._buffer.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as ONNX stores them: packed where they are smaller than a byte."""
        return self._buffer.nbytes

    @property
    def raw(self) -> Buffer:
        """The buffer."""
        return self._buffer

    @property
    def span(self) -> Span | None:
        """Where the stored bytes are in a file of the model: for a view that keeps their order."""
        return self._buffer.span()

    def numpy(self) -> Array:
        """The elements as a read-only view (no copy; computed now where they were deferred)."""
        return self._buffer.array()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def tobytes(self) -> bytes:
        """All stored bytes at once (a copy: for small tensors; large ones are streamed)."""
        out = np.empty(self.nbytes, np.uint8)
        for tile in self._in_order():
            tile.read(out[tile.offset : tile.offset + tile.nbytes])
        self.release()
        return out.tobytes()

    def tofile(self, file: IO[bytes]) -> None:
        """Write the stored bytes to a file object, tile by tile."""
        for piece in self.pieces():
            file.write(piece.data)

    def pieces(self) -> Iterator[Array]:
        """The stored bytes from the first to the last; each piece is there until the next one."""
        scratch = np.empty(0, np.uint8)
        for tile in self._in_order():
            if tile.nbytes > scratch.nbytes:
                scratch = np.empty(tile.nbytes, np.uint8)
            tile.read(scratch[: tile.nbytes])
            yield scratch[: tile.nbytes]
        self.release()

    def _in_order(self) -> Iterator[ArrayTile | BoxTile]:
        source = self._open(_STREAM)
        if source is not None:
            return tiles(source, _STREAM, 0)
        return tiles_of(self._buffer.array(), self.dtype, _STREAM)

    def tiles(self, nbytes: int) -> Iterator[ArrayTile | SlabTile | BoxTile]:
        """Independent pieces of about ``nbytes`` that cover the stored bytes.

        What is postponed is computed in them, until :meth:`release`.
        """
        source = self._open(nbytes)
        if source is not None:
            slab = slab_bytes(source, self.nbytes, nbytes, self._buffer.pool.memory_limit)
            self._count(source, max(nbytes, slab, source.least_tile))
            return tiles(source, nbytes, slab)
        array = self._buffer.array()
        if array.nbytes > LARGE and is_transposed_matrix(array):
            return slabs_of(array, SLAB, self._buffer.release_pages)
        return tiles_of(array, self.dtype, nbytes)

    def _open(self, nbytes: int) -> TileSource | None:
        """Begin to compute what is postponed, in tiles of so many bytes; None if nothing is."""
        self.release()
        self._source = self._buffer.pool.source_of(self._buffer)
        if self._source is not None:
            self._count(self._source, nbytes)
        return self._source

    def _count(self, source: TileSource, nbytes: int) -> None:
        """Count what tiles of so many bytes take as being in use."""
        working = (WORKING_BYTES + nbytes) * THREADS
        self._buffer.pool.add_live(working - self._working)
        self._working = working

    def release(self) -> None:
        """All tiles are in the file: let go of the pages of mapped input that they touched."""
        self._buffer.release_pages()
        if self._source is not None:
            self._source.release()
            self._source = None
            self._buffer.pool.add_live(-self._working)
            self._working = 0


def slab_bytes(source: TileSource, stored: int, nbytes: int, limit: int) -> int:
    """Length of the tiles of many stretches in which a source is written, 0 for none.

    Args:
        source: What is written.
        stored: Bytes of all of it.
        nbytes: Length of a tile of one stretch.
        limit: The pool's memory limit, bytes.
    """
    most = min(SLAB, max(nbytes, limit // (4 * THREADS)))
    if not is_across(source):
        return 0
    if stored > LARGE:
        return most
    # one weight and a scale or bias may stay in memory, more may not
    return min(most, max(nbytes, stored // 8)) if source.read_bytes > LARGE * 3 // 2 else 0
