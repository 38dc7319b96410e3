"""Scratch space on disk for buffers above the memory limit."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import IO

from onnxfold.errors import OnnxFoldError
from onnxfold.storage import MappedFile, write_at


class ScratchPart(MappedFile):
    """A segment of the scratch file: written piece by piece, then read through a mapping."""

    __slots__ = ("_descriptor", "_folder", "_offset")

    def __init__(self, descriptor: int, offset: int, nbytes: int, folder: str) -> None:
        super().__init__(descriptor, folder, offset, nbytes)
        self._descriptor = descriptor
        self._offset = offset
        self._folder = folder

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at ``offset``. Thread-safe. Raises OnnxFoldError if the disk is full."""
        with _naming(self._folder):
            write_at(self._descriptor, data, self._offset + offset)


class Scratch:
    """An unlinked file that grows by one mapping per spilled block and ends with the process.

    Args:
        folder: Where the file is made; None for the system's temporary folder. The folder of
            the output has room for the model, and so for its tensors.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0

    def create(self, nbytes: int) -> ScratchPart:
        """Allocate at least one byte. Raises OnnxFoldError if the disk is full."""
        folder = self._folder or tempfile.gettempdir()
        with _naming(folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            descriptor = self._file.fileno()
            offset = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._end = offset + nbytes
            os.ftruncate(descriptor, self._end)
            return ScratchPart(descriptor, offset, nbytes, folder)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def _naming(folder: str) -> Iterator[None]:
    """Turn errors of the system into errors that name the file."""
    try:
        yield
    except OSError as error:
        reason = f"intermediate results cannot be written: {error.strerror or error}"
        raise OnnxFoldError(reason, file=folder) from error
