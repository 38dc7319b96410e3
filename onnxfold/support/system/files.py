"""Files: descriptors, positional reads and writes, the disk, mapped pages and owners."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
from collections.abc import Callable

if sys.platform == "win32":
    import _winapi
    import msvcrt
    import threading
else:
    import resource
if sys.platform == "darwin":
    import fcntl

CAN_REMOVE_OPEN_FILES = sys.platform != "win32"
"""Whether a file that is open or memory-mapped can be removed or replaced by another one."""

TEMPORARY_FOLDER_VARIABLES = ("TMPDIR", "TEMP", "TMP") if sys.platform == "win32" else ("TMPDIR",)
"""Environment variables with the folder for temporary files. Python reads TMPDIR on Windows, too,
before TEMP and TMP, which other programs read."""

_PERMISSIONS = 0o666  # of new files, less the process's umask

# FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE of Windows' winnt.h
_FILE_SHARE_ALL = 1 | 2 | 4


# ---------------------------------------------------------------- descriptors


def open_to_read(path: str) -> int:
    """Return a descriptor of the file at a path; a named pipe is opened without waiting.

    The file may be renamed while it is open, also on Windows.

    Raises:
        OSError: The file cannot be opened. On Windows, this includes a folder.
    """
    if sys.platform == "win32":
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        # `os.open` does not allow others to rename or remove the file.
        handle = _winapi.CreateFile(
            path, _winapi.GENERIC_READ, _FILE_SHARE_ALL, 0, _winapi.OPEN_EXISTING, 0, 0
        )
        return msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_BINARY)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def create_file(path: str) -> int:
    """Create a file that does not exist; return a descriptor for reading and writing bytes.

    Raises:
        OSError: The file exists or cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    if sys.platform == "win32":
        flags |= os.O_BINARY
    return os.open(path, flags, _PERMISSIONS)


def copy_permissions(path: str, descriptor: int) -> None:
    """Give an open file the permissions of the file at a path.

    On Windows, files have no permissions of this kind; the file inherits those of its folder.

    Raises:
        FileNotFoundError: There is no file at the path.
    """
    if sys.platform != "win32":
        os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))


def allow_open_files(count: int) -> None:
    """Raise this process's own limit on open files, as far as allowed, if it is below ``count``.

    Windows has no such limit.
    """
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= count:
            return
        most = hard
        if sys.platform == "darwin" and (hard == resource.RLIM_INFINITY or hard > _OPEN_MAX):
            most = _OPEN_MAX
        more = 4 * count if most == resource.RLIM_INFINITY else min(4 * count, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))


_OPEN_MAX = 10240  # in macOS's sys/syslimits.h; setrlimit(2) refuses a soft limit above


# ---------------------------------------------------------------- names


def replace_file(new: str, path: str, new_path: Callable[[], str]) -> str | None:
    """Rename a file over the one at a path, if there is one.

    Windows does not replace a file that is open or mapped, but renames it if it was opened by
    `open_to_read`. Mappings of it stay valid. Between two renames, there is no file at the path.

    Args:
        new: The path of a closed file.
        path: The path that it gets.
        new_path: Returns an unused path in the same folder, for the replaced file if it is in use.

    Returns:
        The new path of the replaced file; None if it is removed.

    Raises:
        OSError: The file cannot be renamed; the file at the path is unchanged.
    """
    if CAN_REMOVE_OPEN_FILES:
        os.replace(new, path)
        return None
    try:
        os.replace(new, path)
        return None
    except OSError:  # the file is in use: Windows has several errors for that
        if not os.path.isfile(path):
            raise
    aside = new_path()
    os.rename(path, aside)
    try:
        os.rename(new, path)
    except OSError:
        os.rename(aside, path)
        raise
    return None if _is_removed(aside) else aside


def remove_file(path: str, new_path: Callable[[], str]) -> str | None:
    """Remove a file. One that is open or mapped is renamed on Windows, see `replace_file`.

    Args:
        path: The path of the file.
        new_path: Returns an unused path in the same folder, for the file if it is in use.

    Returns:
        The new path of the file; None if it is removed.

    Raises:
        OSError: The file can be neither removed nor renamed.
    """
    if CAN_REMOVE_OPEN_FILES:
        os.unlink(path)
        return None
    if _is_removed(path):
        return None
    aside = new_path()
    os.rename(path, aside)
    return aside


def _is_removed(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:  # it is in use, or missing
        return False
    return True


# ---------------------------------------------------------------- content

if sys.platform == "win32":
    # Windows has no fork, in which a copy of this lock could be locked.
    _position_lock = threading.Lock()

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        """Write bytes at an offset and return their number. Thread-safe."""
        with _position_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)

    def pread(descriptor: int, nbytes: int, offset: int) -> bytes:
        """Read bytes at an offset. Thread-safe."""
        with _position_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, nbytes)

else:
    pwrite = os.pwrite
    pread = os.pread


def copy_range(source: int, target: int, nbytes: int, start: int, offset: int) -> int:
    """Copy bytes between files by the system; return their number.

    The result is 0 if the system or a file system cannot copy or fails. Reading and writing the
    bytes then reports the error.

    Args:
        source: The descriptor to read from.
        target: The descriptor to write to.
        nbytes: The number of bytes.
        start: The offset in the source.
        offset: The offset in the target.
    """
    # Python may be built without this call, for an old C library.
    if sys.platform == "linux" and hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):
            return os.copy_file_range(source, target, nbytes, start, offset)
    return 0


def release_pages(mapped: mmap.mmap, start: int, nbytes: int) -> None:
    """Remove unmodified pages of a mapped file from the memory of this process.

    They are read again on access. Windows has no such call and removes them under memory pressure.
    """
    if sys.platform != "win32":
        mapped.madvise(mmap.MADV_DONTNEED, start, nbytes)


# ---------------------------------------------------------------- the disk


def sync_file(descriptor: int) -> None:
    """Wait until the content of a file that is open for writing is on the disk."""
    if sys.platform == "darwin":
        # fsync of macOS does not wait for the disk's own cache; see its manual page.
        with contextlib.suppress(OSError):  # not supported by the file system
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Start writing the content of a file to the disk, and wait for that on most systems.

    `sync_file` must follow.
    """
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_path(path: str | os.PathLike[str]) -> None:
    """Wait until the content of the file at a path is on the disk."""
    # Windows syncs files that are open for writing only.
    mode = "r+b" if sys.platform == "win32" else "rb"
    with open(path, mode) as file:
        sync_file(file.fileno())


def sync_folder(path: str) -> None:
    """Wait until the entries of a folder are on the disk, if the system supports that."""
    if sys.platform == "win32":
        return  # folders cannot be opened
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- owners


def writable_by_others(status: os.stat_result) -> bool:
    """Return whether users other than this one and root own a file or folder or may write to it.

    The result is False on Windows, where the status of a file does not contain its access rights.
    """
    if sys.platform == "win32":
        return False
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & 0o022)


def user_and_group() -> tuple[int, int]:
    """Return the numbers of the user and the group of this process; those of root on Windows."""
    if sys.platform == "win32":
        return (0, 0)
    return (os.getuid(), os.getgid())
