"""Files mapped into memory, once for all tensors in them."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import stat
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxfold.errors import ModelError

_READ = os.O_RDONLY | os.O_NONBLOCK  # do not wait for named pipes
_lock = threading.Lock()
_open_files: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile] = (
    weakref.WeakValueDictionary()
)
_mapped: weakref.WeakSet[MappedFile] = weakref.WeakSet()


class MappedFile:
    """A regular file, or a part of one, mapped read-only; the descriptor may be closed afterwards.

    The mapping keeps its content if another file is renamed over the path or the path is removed.
    If another program truncates the file, the process crashes.

    Args:
        fd: The open file.
        path: Its path, for error messages.
        offset: The start of the mapping, a multiple of ``mmap.ALLOCATIONGRANULARITY``.
        size: The number of bytes to map; None for all from ``offset`` on.

    Attributes:
        path: The absolute path.
        key: (device, inode, modification time in ns, size in bytes) of the file.
        size: The number of mapped bytes.

    Raises:
        OSError: The file cannot be mapped.
    """

    __slots__ = ("__weakref__", "_array", "_map", "_replaced", "key", "path", "size")

    def __init__(self, fd: int, path: str, offset: int = 0, size: int | None = None) -> None:
        self.path = os.path.abspath(path)
        self.key = _key(os.fstat(fd))
        self.size = self.key[-1] - offset if size is None else size
        self._replaced = False
        self._map: mmap.mmap | None = None
        _mapped.add(self)
        _allow_descriptors(2 * len(_mapped))
        if self.size:
            self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_READ, offset=offset)
        self._array: npt.NDArray[np.uint8] = np.frombuffer(self._map or b"", dtype=np.uint8)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MappedFile:
        """Map the file at ``path``, or return its existing mapping.

        Raises:
            OSError: The file does not exist, is not a regular file, or cannot be read.
        """
        path = os.fspath(path)
        fd = os.open(path, _READ)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", path)
            with _lock:
                known = _open_files.get(_key(status))
                if known is None:
                    known = _open_files[_key(status)] = cls(fd, path)
                return known
        finally:
            os.close(fd)

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the bytes as a read-only 1-D array; a view keeps the mapping alive."""
        return self._array

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Release the memory of the pages wholly inside the range (bytes).

        The content stays readable: a released page is read again on access.
        """
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = self.size if length is None else min(offset + length, self.size)
        if stop != self.size:
            stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int | None]:
        """Open the file again; None if its path is no longer this file."""
        try:
            fd = os.open(self.path, _READ)
        except OSError:
            yield None
            return
        try:
            yield fd if _key(os.fstat(fd)) == self.key else None
        finally:
            os.close(fd)

    def check(self) -> None:
        """Check that the file has not changed since it was mapped.

        It may have been removed, or replaced by this process.

        Raises:
            ModelError: Another program has changed or replaced the file.
        """
        if not (self.is_at(self.path) or self._replaced or not os.path.exists(self.path)):
            reason = "was changed by another program while it was being read"
            raise ModelError(reason, file=self.path)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether ``path`` is this very file, unchanged since it was mapped."""
        try:
            return _key(os.stat(path)) == self.key
        except OSError:
            return False


class Span(NamedTuple):
    """The position in a file of the stored bytes of a tensor (little-endian, packed)."""

    file: MappedFile
    offset: int
    length: int

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the bytes: 1-D, read-only, not copied."""
        return self.file.array()[self.offset : self.offset + self.length]


def about_to_replace(path: str) -> None:
    """Record that this process replaces or removes ``path``; existing mappings stay valid."""
    with contextlib.suppress(OSError):
        file = _open_files.get(_key(os.stat(path)))
        if file is not None:
            file._replaced = True


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _allow_descriptors(count: int) -> None:
    """Raise this process's limit on open files if necessary, as a mapping keeps a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        more = 4 * count if hard == resource.RLIM_INFINITY else min(4 * count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))
