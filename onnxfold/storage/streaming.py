"""Tensors whose values are computed while they are written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.parallel import for_each

TILE = 1 << 20  # bytes; fits a core's second-level cache
# Bytes given to one write call. For longer ones the kernel takes memory in pieces of 2 MiB, which
# are cleared or fetched from the host at once: four times the system time, measured on ext4.
_WRITE = 1 << 20


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


def write_tiles(
    tiles: Iterable[Tile],
    put: Callable[[memoryview, int], object],
    threads: int,
    done: Callable[[], object] = lambda: None,
) -> None:
    """Have tiles computed by several threads, and give ``put`` their stretches and offsets.

    ``done`` is called in this thread after each tile.
    """
    local = threading.local()

    def write(tile: Tile) -> None:
        room: npt.NDArray[np.uint8] | None = getattr(local, "room", None)
        if room is None or len(room) < tile.nbytes:
            room = local.room = np.empty(max(tile.nbytes, TILE), np.uint8)
        tile.read(room[: tile.nbytes])
        length = tile.nbytes // tile.rows
        for k in range(tile.rows):
            put(room.data[k * length : (k + 1) * length], tile.offset + k * tile.pitch)

    for_each(tiles, write, threads, done)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of ``data`` into a file at ``offset``. Thread-safe. Raises OSError."""
    while data:
        count = os.pwrite(fd, data[:_WRITE], offset)
        data = data[count:]
        offset += count


def is_streamed(tensor: object) -> bool:
    """Whether the bytes of a tensor come tile by tile.

    ``tiles(nbytes)`` yields independent ones of about ``nbytes`` that cover the tensor exactly
    once, to one thread at a time. ``release()`` is called when they are written, or that failed,
    once for each file.
    Of the tensor's other methods, those of `ir.TensorProtocol`, ``numpy()`` and ``tobytes()`` are
    called only below a few KiB.
    """
    return hasattr(tensor, "tiles") and hasattr(tensor, "release")
