"""Scratch space on disk for buffers that do not fit the memory limit."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from onnxfold.pool.buffer import Array


class Scratch:
    """An unlinked file that grows by one mapping per spilled block; gone with the process.

    Args:
        folder: Where the file is made; None for the system's temporary folder. Beside the output
            model is a good place: there is room for the model, so there is room for its parts.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._descriptor = -1
        self._end = 0

    def store(self, array: Array) -> Array:
        """Write the array's memory to the file; returns the same bytes as a mapped uint8 array."""
        if self._descriptor < 0:
            self._descriptor, path = tempfile.mkstemp(prefix=".onnxfold-scratch-", dir=self._folder)
            os.unlink(path)
        flat = array.reshape(-1, order="A").view(np.uint8)
        offset = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._end = offset + flat.nbytes
        os.ftruncate(self._descriptor, self._end)
        view = flat.data
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done : done + (64 << 20)], offset + done)
        mapping = mmap.mmap(self._descriptor, flat.nbytes, access=mmap.ACCESS_READ, offset=offset)
        return np.frombuffer(mapping, np.uint8)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
