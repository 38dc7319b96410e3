"""The tensor class of the output model whose elements are in a buffer of the pool."""

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

# Bytes of a piece when the stored bytes of a tensor are read in order.
_PIECE_BYTES = 1 << 20
# Tensors with fewer bytes are written to file objects in one step.
_MIN_STREAMED_BYTES = 1 << 16
# Working memory of all threads while deferred elements are read, in bytes.
_READING_BYTES = (WORKING_BYTES + _PIECE_BYTES) * THREADS


class BufferTensor(StoredTensor, TensorBase):
    """An ``onnx_ir`` tensor whose elements are in a buffer: strided, mapped or deferred.

    Saving a model writes the tensor block by block into the file. The tensor never releases its
    buffer, so a model can be saved repeatedly and used in Python between two saves.
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
        """The number of stored bytes. Elements narrower than a byte are packed."""
        return self.buffer.nbytes

    @property
    def is_known(self) -> bool:
        """Whether the elements are computed."""
        return self.buffer.is_known

    @property
    def span(self) -> Span | None:
        """The position of the stored bytes in a file of the model; None as in `Buffer.span`."""
        return self.buffer.span()

    def numpy(self) -> Array:
        """Return the elements as a read-only view. Deferred elements are computed first."""
        return self.buffer.array()

    def tobytes(self) -> bytes:
        """Return a copy of all stored bytes. For large tensors, use `pieces` or `tiles`."""
        if self.buffer.is_known and self.dtype.bitwidth >= 8:
            stored = self.buffer.array().tobytes()
            self.release()
            return stored
        return b"".join(piece.tobytes() for piece in self.pieces())

    def tofile(self, file: IO[bytes]) -> None:
        """Write the stored bytes to a file object. A large tensor is written piece by piece."""
        if self.nbytes < _MIN_STREAMED_BYTES:
            file.write(self.tobytes())
        else:
            for piece in self.pieces():
                file.write(piece.data)

    def pieces(self) -> Iterator[Array]:
        """Yield the stored bytes in order. A piece is valid until the next piece is requested."""
        memory = np.empty(0, np.uint8)
        for block in blocks_of(self._open(), _PIECE_BYTES):
            if block.nbytes > memory.nbytes:
                memory = np.empty(block.nbytes, np.uint8)
            piece = memory[: block.nbytes]
            block.read(piece)
            yield piece
        self.release()

    def tiles(self, nbytes: int) -> Iterator[Tile]:
        """Return independent blocks of about ``nbytes`` bytes that cover the stored bytes.

        Blocks of a large tensor that is read across its rows have up to `SLAB` bytes. Reading a
        block computes its deferred elements. The blocks are valid until :meth:`release`.
        """
        source = self._open()
        limit = self.buffer.pool.memory_limit
        return blocks_of(source, nbytes, min(SLAB, max(nbytes, limit // (4 * THREADS))))

    def _open(self) -> Source:
        """Open a source of the elements. Deferred elements are computed when they are read.

        Elements that cannot be computed block by block are computed now.
        """
        self.release()
        pool = self.buffer.pool
        if not self.buffer.is_known:
            self._source = pool.evaluator.source(self.buffer)
        if self._source is None:
            return ArraySource(self.buffer.array(), self.dtype, self.buffer)
        pool.add_live(_READING_BYTES)
        return self._source

    def release(self) -> None:
        """Release the source and the mapped pages after all blocks are written."""
        self.buffer.release_pages()
        if self._source is not None:
            self._source.release()
            self._source = None
            self.buffer.pool.add_live(-_READING_BYTES)
