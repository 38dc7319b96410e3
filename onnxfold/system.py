"""What differs between systems, in one place: the rest of the house knows none of them.

Linux and macOS have locks on files and folders (flock), and a file that is open or mapped can be
removed and replaced. Windows has neither (`HOLDS_FILES`): there, who has a file open keeps others
from removing it, which tells files in use from leftovers as well as a lock does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import mmap
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_P = ParamSpec("_P")
_T = TypeVar("_T")

HOLDS_FILES = fcntl is None
"""Whether a file that is open or mapped can be neither removed nor replaced, and has no lock."""

BINARY: int = getattr(os, "O_BINARY", 0)
"""The flag for opening files as they are, where there are others."""

OWN_SESSION: dict[str, Any] = (
    {"creationflags": 0x0800_0000}  # CREATE_NO_WINDOW
    if sys.platform == "win32"
    else {"start_new_session": True}
)
"""Arguments for starting a process that Ctrl-C does not reach: we end it."""

_INT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p


def c_library() -> Any:
    """The C library that this process has loaded."""
    return ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)


# ---------------------------------------------------------------- files


def lets_go_of_files(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have nothing left of a call that maps a file, where others could not replace it."""
    if not HOLDS_FILES:
        return function

    @functools.wraps(function)
    def call(*args: _P.args, **arguments: _P.kwargs) -> _T:
        try:
            return function(*args, **arguments)
        finally:
            gc.collect()  # nodes and graphs refer to each other

    return call


def open_to_read(path: str, *, follow: bool = True) -> int:
    """Open what is at ``path``, which may be anything: a named pipe is not waited for.

    Args:
        path: The path.
        follow: Whether it may be a symbolic link.

    Raises:
        OSError: It cannot be opened.
    """
    flags = os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    except PermissionError:
        if os.path.isdir(path):  # which Windows does not open
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path) from None
        raise


def lock(fd: int, *, wait: bool = True) -> None:
    """Lock an open file or folder, until it is closed; the system does if the process dies.

    Raises:
        OSError: There are no locks there; or, without waiting, somebody else has it.
    """
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(fd: int) -> None:
    """Drop the lock. Raises OSError where there are none."""
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)


def sync(fd: int) -> None:
    """Wait until the content of a file is on the disk, and not in a cache of the disk's (macOS)."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # a disk of another machine
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    os.fsync(fd)


_position = threading.Lock()


def _read_at(fd: int, count: int, offset: int) -> bytes:
    with _position:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, count)


def _write_at(fd: int, data: Any, offset: int) -> int:
    with _position:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


pread = getattr(os, "pread", _read_at)
"""Read at an offset, from any thread; where the system has no such call, one after the other."""
pwrite = getattr(os, "pwrite", _write_at)
"""Write at an offset, likewise; how many bytes were written."""


# ---------------------------------------------------------------- memory at an address

if sys.platform == "win32":
    import msvcrt
    from ctypes import wintypes

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)

    def _function(name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(_kernel, name)
        function.restype, function.argtypes = result, arguments
        return function

    _DWORD, _HANDLE = wintypes.DWORD, wintypes.HANDLE
    _create = _function(
        "CreateFileMappingW", _HANDLE, _HANDLE, _POINTER, _DWORD, _DWORD, _DWORD, wintypes.LPCWSTR
    )
    _view = _function("MapViewOfFile", _POINTER, _HANDLE, _DWORD, _DWORD, _DWORD, _SIZE)
    _unview = _function("UnmapViewOfFile", wintypes.BOOL, _POINTER)
    _close = _function("CloseHandle", wintypes.BOOL, _HANDLE)
    _allocate = _function("VirtualAlloc", _POINTER, _POINTER, _SIZE, _DWORD, _DWORD)
    _free = _function("VirtualFree", wintypes.BOOL, _POINTER, _SIZE, _DWORD)
    _PAGE_READONLY, _PAGE_READWRITE, _FILE_MAP_READ = 0x02, 0x04, 0x04
    _COMMIT_AND_RESERVE, _RELEASE = 0x3000, 0x8000

    def map_file(fd: int, size: int, offset: int) -> int:
        """Map bytes of an open file, to be read; the address. Raises OSError."""
        section = _create(msvcrt.get_osfhandle(fd), None, _PAGE_READONLY, 0, 0, None)
        if not section:
            raise ctypes.WinError(ctypes.get_last_error())
        address = _view(section, _FILE_MAP_READ, offset >> 32, offset & 0xFFFFFFFF, size)
        error = ctypes.get_last_error()
        _close(section)
        if not address:
            raise ctypes.WinError(error)
        return int(address)

    def put_memory(address: int, size: int, *, writable: bool) -> bool:
        """Put zeros in the place of a file that is mapped; whether that was possible."""
        protection = _PAGE_READWRITE if writable else _PAGE_READONLY
        return bool(
            _unview(address)
            and _allocate(address, size, _COMMIT_AND_RESERVE, protection) == address
        )

    def unmap(address: int, size: int) -> None:
        """Nobody reads there any more."""
        if not _unview(address):
            _free(address, 0, _RELEASE)

    def advise(address: int, size: int, advice: int) -> None:
        """Tell the system what is to be done with pages: this one finds out itself."""

else:
    _c_library = c_library()

    def _function(name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(_c_library, name)
        function.restype, function.argtypes = result, arguments
        return function

    _map = _function("mmap", _POINTER, _POINTER, _SIZE, _INT, _INT, _INT, ctypes.c_long)
    unmap = _function("munmap", _INT, _POINTER, _SIZE)
    """Nobody reads there any more."""
    advise = _function("madvise", _INT, _POINTER, _SIZE, _INT)
    """Tell the system what is to be done with pages."""
    _MAP_FIXED = 0x10
    _FAILED = ctypes.c_void_p(-1).value

    def map_file(fd: int, size: int, offset: int) -> int:
        """Map bytes of an open file, to be read; the address. Raises OSError."""
        address = _map(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(address)

    def put_memory(address: int, size: int, *, writable: bool) -> bool:
        """Put zeros in the place of a file that is mapped; whether that was possible."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        return bool(_map(address, size, protection, flags, -1, 0) == address)
