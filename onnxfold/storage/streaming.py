"""What a tensor offers whose values are computed while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


class Tile(Protocol):
    """A part of a tensor's stored bytes (little-endian, sub-byte types packed).

    It is one stretch, or ``rows`` equally long ones whose beginnings are ``pitch`` bytes apart.
    """

    @property
    def rows(self) -> int:
        """Number of stretches."""
        ...

    @property
    def pitch(self) -> int:
        """Distance of their beginnings within the tensor, bytes; of no meaning for one."""
        ...

    @property
    def offset(self) -> int:
        """Where it starts within the tensor, bytes."""
        ...

    @property
    def nbytes(self) -> int:
        """How long it is, bytes: all rows together."""
        ...

    def read(self, out: npt.NDArray[np.uint8]) -> None:
        """Fill ``out``, a contiguous uint8 array of exactly `nbytes`.

        Tiles of one tensor are read by several threads at once, in any order; ``out`` is reused
        afterwards. Should release the GIL where it can.
        """
        ...


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
        """Called when a save needs the tensor no more: its tiles are written, or it failed.

        Once for each save that got as far as writing. Another save calls `tiles` again.
        """
        ...


def is_streamed(tensor: Any) -> bool:
    """Whether ``tensor`` is a `StreamedTensor` (isinstance on a protocol is slow)."""
    return hasattr(tensor, "tiles") and hasattr(tensor, "release")
