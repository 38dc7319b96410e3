"""A buffer as a tensor of the output model: the one place where a value is materialized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np

from onnxfold.fold.pool.blocks import SLAB, WORKING_BYTES, ArraySource, Source, blocks_of
from onnxfold.fold.pool.buffer import Array, Buffer
from onnxfold.ir.onnx_ir_private import TensorBase
from onnxfold.ir.storage import Span, Tile
from onnxfold.ir.storage.encode import static_shape
from onnxfold.ir.storage.tensors import StoredTensor
from onnxfold.support.parallel import THREADS

_STREAM = 1 << 20
_LEAST = 1 << 16
_WORKING = (WORKING_BYTES + _STREAM) * THREADS


class BufferTensor(StoredTensor, TensorBase):
    """An ``onnx_ir`` tensor whose elements are a buffer: strided, mapped, or still to be computed.

    Saving streams it block by block into the file. It retains its buffer as long as it exists, so
    a model can be saved more than once and used in Python in between.
    """

    __slots__ = ("_source", "buffer", "dtype", "raw", "shape")

    def __init__(self, buffer: Buffer, name: str | None = None) -> None:
        super().__init__(name=name)
        self.buffer = buffer
        self.raw = buffer
        self.dtype = buffer.dtype
        self.shape = static_shape(buffer.shape)
        self._source: Source | None = None
        buffer.pool.retain(buffer)
        buffer.pool.statistics.materialized += 1

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as ONNX stores them: packed where they are smaller than a byte."""
        return self.buffer.nbytes

    @property
    def is_known(self) -> bool:
        """Whether the elements are computed."""
        return self.buffer.is_known

    @property
    def span(self) -> Span | None:
        """Where the stored bytes are in a file of the model: for a view that keeps their order."""
        return self.buffer.span()

    def numpy(self) -> Array:
        """Return the elements as a read-only view; deferred ones are computed."""
        return self.buffer.array()

    def tobytes(self) -> bytes:
        """Return all stored bytes at once (a copy: for small tensors; large ones are streamed)."""
        if self.buffer.is_known and self.dtype.bitwidth >= 8:
            stored = self.buffer.array().tobytes()
            self.release()
            return stored
        return b"".join(piece.tobytes() for piece in self.pieces())

    def tofile(self, file: IO[bytes]) -> None:
        """Write the stored bytes to a file object, block by block if they are many."""
        if self.nbytes < _LEAST:
            file.write(self.tobytes())
        else:
            for piece in self.pieces():
                file.write(piece.data)

    def pieces(self) -> Iterator[Array]:
        """Yield the stored bytes in order; each piece is valid until the next one."""
        room = np.empty(0, np.uint8)
        for block in blocks_of(self._open(), _STREAM):
            if block.nbytes > room.nbytes:
                room = np.empty(block.nbytes, np.uint8)
            block.read(room[: block.nbytes])
            yield room[: block.nbytes]
        self.release()

    def tiles(self, nbytes: int) -> Iterator[Tile]:
        """Return independent blocks of about ``nbytes`` that cover the stored bytes.

        What is postponed is computed in them, until :meth:`release`.
        """
        source = self._open()
        limit = self.buffer.pool.memory_limit
        return blocks_of(source, nbytes, min(SLAB, max(nbytes, limit // (4 * THREADS))))

    def _open(self) -> Source:
        """Open a source of the elements; postponed elements are computed as they are read."""
        self.release()
        pool = self.buffer.pool
        if not self.buffer.is_known:
            self._source = pool.evaluator.source(self.buffer)
        if self._source is None:
            return ArraySource(self.buffer.array(), self.dtype, self.buffer)
        pool.add_live(_WORKING)
        return self._source

    def release(self) -> None:
        """Release the pages of mapped input: all blocks are in the file."""
        self.buffer.release_pages()
        if self._source is not None:
            self._source.release()
            self._source = None
            self.buffer.pool.add_live(-_WORKING)
