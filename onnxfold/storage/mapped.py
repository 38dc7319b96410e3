"""Files mapped into memory once, however many tensors are in them."""

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

_READ = os.O_RDONLY | os.O_NONBLOCK  # a named pipe is not waited for
_lock = threading.Lock()
_open_files: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile] = (
    weakref.WeakValueDictionary()
)
_mapped: weakref.WeakSet[MappedFile] = weakref.WeakSet()


class MappedFile:
    """A regular file, or a part of one, mapped read-only; the descriptor may be closed afterwards.

    The mapping shows the file that was there when it was opened, also after another file is renamed
    over its path or the path is removed. Another program that truncates the file ends the process.

    Args:
        fd: The open file.
        path: Its path, for errors.
        offset: Where the mapping begins, a multiple of ``mmap.ALLOCATIONGRANULARITY``.
        size: The number of bytes to map; None for all from ``offset`` on.

    Attributes:
        path: The absolute path.
        key: (device, inode, modification time in ns, size in bytes) of the file.
        size: The number of bytes that are mapped.

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
        """Map the file at ``path``, or return the mapping that exists already.

        Raises:
            OSError: It does not exist, is not a regular file, or cannot be read.
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
        """Return all of it as a read-only 1-D array; a view keeps the mapping alive."""
        return self._array

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Give back the memory of the pages wholly inside the range (bytes).

        The content stays readable: a page touched again is read again.
        """
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = self.size if length is None else min(offset + length, self.size)
        if stop != self.size:
            stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int | None]:
        """Open the file once more; None if its path leads to it no more."""
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
        """See that the file is what it was when it was mapped.

        It may have been removed, and this process may have put another file in its place.

        Raises:
            ModelError: Another program has changed or replaced it.
        """
        if not (self.is_at(self.path) or self._replaced or not os.path.exists(self.path)):
            reason = "was changed by another program while it was being read"
            raise ModelError(reason, file=self.path)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether ``path`` still leads to this very file, unchanged since it was mapped."""
        try:
            return _key(os.stat(path)) == self.key
        except OSError:
            return False


class Span(NamedTuple):
    """Where the stored bytes of a tensor (little-endian, packed) are: ``length`` at ``offset``."""

    file: MappedFile
    offset: int
    length: int

    def array(self) -> npt.NDArray[np.uint8]:
        """Return those bytes, 1-D, read-only, not copied."""
        return self.file.array()[self.offset : self.offset + self.length]


def about_to_replace(path: str) -> None:
    """Note that ``path`` is replaced or removed by this process: what is mapped stays as it is."""
    with contextlib.suppress(OSError):
        file = _open_files.get(_key(os.stat(path)))
        if file is not None:
            file._replaced = True


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _allow_descriptors(count: int) -> None:
    """Raise this process's limit on open files if it is lower: a mapping keeps a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        more = 4 * count if hard == resource.RLIM_INFINITY else min(4 * count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))
