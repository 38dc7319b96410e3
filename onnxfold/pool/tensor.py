"""A buffer as a tensor of the output model: the one place where a value is materialized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir._core import TensorBase

from onnxfold.pool.buffer import Array, Buffer
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
_LARGE = 1 << 26
_SLAB = 1 << 24


class BufferTensor(TensorBase):
    """An ``onnx_ir`` tensor whose elements are a buffer: strided, mapped, or still to be computed.

    Saving streams it tile by tile into its place in the file. It keeps its buffer until it is
    garbage itself, so a model can be saved more than once and used in Python in between.
    """

    __slots__ = ("_buffer",)

    def __init__(self, buffer: Buffer, name: str | None = None) -> None:
        super().__init__(name=name)
        self._buffer = buffer
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
        return ir.Shape(self._buffer.shape, frozen=True)

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
        for tile in tiles_of(self._buffer.array(), self.dtype, _STREAM):
            tile.read(out[tile.offset : tile.offset + tile.nbytes])
        return out.tobytes()

    def tofile(self, file: IO[bytes]) -> None:
        """Write the stored bytes to a file object, tile by tile."""
        scratch = np.empty(0, np.uint8)
        for tile in tiles_of(self._buffer.array(), self.dtype, _STREAM):
            if tile.nbytes > scratch.nbytes:
                scratch = np.empty(tile.nbytes, np.uint8)
            tile.read(scratch[: tile.nbytes])
            file.write(scratch.data[: tile.nbytes])

    def tiles(self, nbytes: int) -> Iterator[ArrayTile | SlabTile]:
        """Independent pieces of about ``nbytes`` that cover the stored bytes."""
        array = self._buffer.array()
        if array.nbytes > _LARGE and is_transposed_matrix(array):
            return slabs_of(array, _SLAB, self._buffer.release_pages)
        return tiles_of(array, self.dtype, nbytes)

    def release(self) -> None:
        """All tiles are in the file: let go of the pages of mapped input that they touched."""
        self._buffer.release_pages()
