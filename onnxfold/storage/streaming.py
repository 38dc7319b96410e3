"""What a tensor offers whose values are computed while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


@dataclass(frozen=True)
class Tile:
    """A part of a tensor's stored bytes (little-endian, sub-byte types packed).

    Attributes:
        offset: Where it starts within the tensor, bytes.
        nbytes: How long it is, bytes: all rows together.
        read: Fills a contiguous uint8 array of exactly ``nbytes``, which is reused afterwards.
            Tiles of one tensor are read by several threads at once, in any order. Should release
            the GIL where it can.
        rows: Of how many stretches of one length it is.
        pitch: Distance of their beginnings within the tensor, bytes; of no meaning for one.
    """

    offset: int
    nbytes: int
    read: Callable[[npt.NDArray[np.uint8]], None]
    rows: int = 1
    pitch: int = 0

    def stretches(self, data: npt.NDArray[np.uint8]) -> Iterator[tuple[memoryview, int]]:
        """The stretches of what ``read`` gave, and where each of them begins."""
        length = self.nbytes // self.rows
        for k in range(self.rows):
            yield data.data[k * length : (k + 1) * length], self.offset + k * self.pitch


@runtime_checkable
class StreamedTensor(Protocol):
    """An ``ir.TensorProtocol`` whose bytes come tile by tile.

    `save` needs besides only ``dtype``, ``shape``, ``name``, ``doc_string`` and ``metadata_props``;
    ``numpy()`` and ``tobytes()`` are called only for tensors below a few KiB.
    """

    @property
    def dtype(self) -> ir.DataType:
        """The element type."""
        ...

    @property
    def shape(self) -> ir.Shape:
        """The shape, all integers."""
        ...

    def tiles(self, nbytes: int) -> Iterator[Tile]:
        """Yield independent tiles of about ``nbytes`` each that cover the tensor exactly once.

        The iterator is advanced by one thread at a time, and only as fast as tiles are written.
        """
        ...

    def release(self) -> None:
        """Called when the tiles are written, or that failed.

        Once for each file that it is written to. Another one calls `tiles` again.
        """
        ...


def is_streamed(tensor: Any) -> bool:
    """Whether ``tensor`` is a `StreamedTensor` (isinstance on a protocol is slow)."""
    return hasattr(tensor, "tiles") and hasattr(tensor, "release")
