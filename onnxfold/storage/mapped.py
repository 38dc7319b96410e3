"""Files mapped into memory once, however many tensors are in them.

Mapped with the system's own call, through ctypes: Python's ``mmap`` keeps a descriptor for every
mapping (before 3.13 it has to), and a model of a thousand data files would run out of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_PAGE = mmap.PAGESIZE
_FAILED = ctypes.c_void_p(-1).value
_lock = threading.Lock()
_open_files: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile] = (
    weakref.WeakValueDictionary()
)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype, function.argtypes = result, arguments
    return function


_mmap = _function(
    "mmap",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_munmap = _function("munmap", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_madvise = _function("madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping:
    """A stretch of a file in memory, read-only; the descriptor may be closed afterwards.

    Args:
        fd: The open file.
        size: Length in bytes.
        offset: Where it begins in the file, a multiple of ``mmap.ALLOCATIONGRANULARITY``.

    Raises:
        OSError: The system cannot map it.
    """

    __slots__ = ("_address", "_array", "size")

    def __init__(self, fd: int, size: int, offset: int = 0) -> None:
        self.size = size
        self._address = 0
        data = memoryview(b"")
        if size:
            address = _mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
            if address == _FAILED:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            self._address = address
            block = (ctypes.c_ubyte * size).from_address(address)
            # Arrays keep the block alive. At the end of the process other threads may still read.
            weakref.finalize(block, _munmap, address, size).atexit = False
            data = memoryview(block).cast("B").toreadonly()
        self._array: npt.NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)

    def array(self) -> npt.NDArray[np.uint8]:
        """Return all of it as a read-only 1-D array; a view keeps the mapping alive."""
        return self._array

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Give back the memory of the pages wholly inside the range (bytes).

        The content stays readable: a page touched again is read again.
        """
        advice = getattr(mmap, "MADV_DONTNEED", None)
        start = -(-offset // _PAGE) * _PAGE
        stop = self.size if length is None else min(offset + length, self.size)
        if stop != self.size:
            stop = stop // _PAGE * _PAGE
        if advice is not None and stop > start:
            _madvise(self._address + start, stop - start, advice)


class MappedFile(Mapping):
    """A regular file mapped read-only; no descriptor stays open.

    The mapping shows the file that was there when it was opened, also after another file is renamed
    over its path or the path is removed.

    Attributes:
        path: The absolute path it was opened by.
        key: (device, inode, modification time in ns, size in bytes).
        size: Its size in bytes.
    """

    __slots__ = ("__weakref__", "key", "path")

    def __init__(self, path: str, fd: int, status: os.stat_result) -> None:
        """Map the file open as ``fd``; use `open` instead."""
        super().__init__(fd, status.st_size)
        self.path = os.path.abspath(path)
        self.key = _key(status)

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
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", path)
            with _lock:
                known = _open_files.get(_key(status))
                if known is None:
                    known = _open_files[_key(status)] = cls(path, fd, status)
                return known
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int | None]:
        """Open the file once more; None if its path leads to it no more."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            yield None
            return
        try:
            yield fd if _key(os.fstat(fd)) == self.key else None
        finally:
            os.close(fd)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether ``path`` still leads to this very file, unchanged since it was mapped."""
        try:
            return _key(os.stat(path)) == self.key
        except OSError:
            return False


class Span(NamedTuple):
    """Where the stored bytes of a tensor (little-endian, packed) are: ``length`` at ``offset``."""

    file: MappedFile
    offset: int
    length: int


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
