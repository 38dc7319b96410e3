"""Scratch space on disk for buffers that do not fit the memory limit."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from onnxfold.pool.buffer import Array

_WRITTEN_AT_ONCE = 64 << 20


class ScratchPart:
    """A stretch of the scratch file: written piece by piece, then read through a mapping."""

    __slots__ = ("_array", "_descriptor", "_mapping", "_offset", "nbytes")

    def __init__(self, descriptor: int, offset: int, nbytes: int) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self.nbytes = nbytes
        self._mapping = mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_READ, offset=offset)
        self._array = np.frombuffer(self._mapping, np.uint8)

    def array(self) -> Array:
        """All of it as read-only bytes; a view keeps the mapping alive."""
        return self._array

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at ``offset``. Thread-safe. Raises OSError if the disk is full."""
        done = 0
        while done < len(data):
            part = data[done : done + _WRITTEN_AT_ONCE]
            done += os.pwrite(self._descriptor, part, self._offset + offset + done)

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Give back the memory of the pages wholly inside the range (bytes); they stay readable."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        stop = self.nbytes if length is None else min(offset + length, self.nbytes)
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        if stop != self.nbytes:
            stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if advice is not None and stop > start:
            self._mapping.madvise(advice, start, stop - start)


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

    def create(self, nbytes: int) -> ScratchPart:
        """Room for that many bytes, at least one."""
        if self._descriptor < 0:
            self._descriptor, path = tempfile.mkstemp(prefix=".onnxfold-scratch-", dir=self._folder)
            os.unlink(path)
        offset = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._end = offset + nbytes
        os.ftruncate(self._descriptor, self._end)
        return ScratchPart(self._descriptor, offset, nbytes)

    def store(self, array: Array) -> ScratchPart:
        """Write the memory of a contiguous array (in C or Fortran order) to the file."""
        flat = array.reshape(-1, order="A").view(np.uint8)
        part = self.create(flat.nbytes)
        part.write(flat.data, 0)
        return part

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
