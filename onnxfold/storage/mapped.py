"""Files mapped into memory once, however many tensors are in them."""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PAGE = mmap.PAGESIZE
_lock = threading.Lock()
_open_files: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile] = (
    weakref.WeakValueDictionary()
)


class MappedFile:
    """A regular file mapped read-only, and kept open.

    The mapping shows the file that was there when it was opened, also after another file is renamed
    over its path. A program that truncates the file in place takes the pages away (SIGBUS); nothing
    in this package does.

    Attributes:
        path: The path it was opened by.
        key: (device, inode, modification time in ns, size in bytes).
        size: Its size in bytes.
    """

    __slots__ = ("__weakref__", "_array", "_fd", "_map", "key", "path", "size")

    def __init__(self, path: str, fd: int, status: os.stat_result) -> None:
        """Take over the descriptor ``fd``; use `open` instead."""
        self.path = path
        self.key = _key(status)
        self.size = status.st_size
        self._fd = fd
        self._map: mmap.mmap | None = None
        if self.size:
            self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_READ)
            self._array = np.frombuffer(self._map, dtype=np.uint8)
        else:
            self._array = np.zeros(0, dtype=np.uint8)
            self._array.flags.writeable = False
        # Last: before this the caller closes the descriptor when anything fails.
        weakref.finalize(self, os.close, fd)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MappedFile:
        """Map the file at ``path``, or return the mapping that is there already.

        Raises:
            OSError: It does not exist, is not a regular file, or cannot be read.
        """
        path = os.fspath(path)
        # O_NONBLOCK: opening a named pipe must not wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(21, "Is a directory", path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(22, "Not a regular file", path)
            with _lock:
                known = _open_files.get(_key(status))
                if known is not None:
                    os.close(fd)
                    return known
                opened = cls(path, fd, status)
                _open_files[opened.key] = opened
                return opened
        except BaseException:
            os.close(fd)
            raise

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the whole file as a read-only 1-D array; a view keeps the mapping alive."""
        return self._array

    def buffer(self) -> mmap.mmap | bytes:
        """Return the mapping itself, for reading single bytes quickly."""
        return self._map if self._map is not None else b""

    def fileno(self) -> int:
        """Return the open descriptor; do not close it, do not seek on it."""
        return self._fd

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Give back the memory of the pages wholly inside the range (bytes).

        The content stays readable: a page touched again is read again.
        """
        self._advise("MADV_DONTNEED", offset, length, inside=True)

    def willneed(self, offset: int = 0, length: int | None = None) -> None:
        """Ask the system to read the range (bytes) ahead."""
        self._advise("MADV_WILLNEED", offset, length, inside=False)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether ``path`` still leads to this very file, unchanged since it was mapped."""
        try:
            return _key(os.stat(path)) == self.key
        except OSError:
            return False

    def _advise(self, advice: str, offset: int, length: int | None, *, inside: bool) -> None:
        option = getattr(mmap, advice, None)
        if self._map is None or option is None:
            return
        stop = self.size if length is None else min(offset + length, self.size)
        if inside:
            start = -(-offset // _PAGE) * _PAGE
            if stop != self.size:
                stop = stop // _PAGE * _PAGE
        else:
            start = offset // _PAGE * _PAGE
        if stop > start:
            self._map.madvise(option, start, stop - start)


class Span(NamedTuple):
    """Where the stored bytes of a tensor (little-endian, packed) are: ``length`` at ``offset``."""

    file: MappedFile
    offset: int
    length: int


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
