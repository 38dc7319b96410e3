"""Files mapped into memory once, however many tensors are in them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxfold.errors import ModelError
from onnxfold.lost_pages import Mapping
from onnxfold.system import HOLDS_FILES, open_to_read

_lock = threading.Lock()
_open_files: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile] = (
    weakref.WeakValueDictionary()
)


class MappedFile(Mapping):
    """A regular file mapped read-only; no descriptor stays open.

    The mapping shows the file that was there when it was opened, also after another file is renamed
    over its path or the path is removed.

    Attributes:
        path: The absolute path it was opened by.
        key: (device, inode, modification time in ns, size in bytes); -1 is no device.
        size: Its size in bytes.
    """

    __slots__ = ("__weakref__", "_replaced", "key", "path")

    def __init__(self, path: str, fd: int, status: os.stat_result) -> None:
        """Map the file open as ``fd``; use `open` instead."""
        self.path = os.path.abspath(path)
        super().__init__(fd, status.st_size, path=self.path)
        self.key = _key(status)
        self._replaced = False

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MappedFile:
        """Map the file at ``path``, or return the mapping that is there already.

        Raises:
            OSError: It does not exist, is not a regular file, or cannot be read.
        """
        path = os.fspath(path)
        fd = open_to_read(path)
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
            fd = open_to_read(self.path)
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
        if not self._region.is_lost:
            try:
                status = os.stat(self.path)
            except OSError:
                return
            is_this = (status.st_dev, status.st_ino) == self.key[:2]
            if _key(status) == self.key if is_this else self._replaced:
                return
        raise ModelError("was changed by another program while it was being read", file=self.path)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether ``path`` still leads to this very file, unchanged since it was mapped."""
        try:
            return _key(os.stat(path)) == self.key
        except OSError:
            return False


def about_to_replace(path: str) -> None:
    """Note that ``path`` is replaced or removed by this process: what is mapped stays as it is.

    Raises:
        OSError: It must be copied to memory for that (`HOLDS_FILES`), and there is not enough.
    """
    file = None
    with contextlib.suppress(OSError):
        file = _open_files.get(_key(os.stat(path)))
    if file is not None:
        file._replaced = True
        if HOLDS_FILES:
            file._region.let_go_of_the_file()
            _open_files.pop(file.key, None)
            file.key = (-1, id(file), 0, 0)  # the next file may get its number


class Span(NamedTuple):
    """Where the stored bytes of a tensor (little-endian, packed) are: ``length`` at ``offset``."""

    file: MappedFile
    offset: int
    length: int

    def array(self) -> npt.NDArray[np.uint8]:
        """Those bytes, 1-D, read-only, not copied."""
        return self.file.array()[self.offset : self.offset + self.length]


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
