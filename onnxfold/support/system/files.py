"""System-dependent functions for files: descriptors, renaming, content, syncing and owners."""

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
"""Whether a file that is open or memory-mapped can be removed, or replaced by another file."""

TEMPORARY_FOLDER_VARIABLES = ("TMPDIR", "TEMP", "TMP") if sys.platform == "win32" else ("TMPDIR",)
"""Environment variables with the folder for temporary files. On Windows, Python reads TMPDIR first,
then TEMP and TMP. Other programs on Windows read only TEMP and TMP."""

# Permissions of new files, before the umask of the process is applied.
_PERMISSIONS = 0o666

# FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE of Windows' winnt.h
_FILE_SHARE_ALL = 1 | 2 | 4

# OPEN_MAX in macOS's sys/syslimits.h. setrlimit(2) rejects a higher soft limit.
_OPEN_MAX = 10240

# `allow_open_files` raises the limit to this multiple of ``count``, so that the next calls need not
# change the limit.
_RAISE = 4


# ---------------------------------------------------------------- descriptors


def open_to_read(path: str) -> int:
    """Return a descriptor for reading the file at a path. Opening a named pipe does not block.

    The file can be renamed while it is open, even on Windows.

    Raises:
        OSError: The file cannot be opened. On Windows, a folder cannot be opened.
    """
    if sys.platform == "win32":
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        # with `os.open`, other processes cannot rename or remove the file
        handle = _winapi.CreateFile(
            path, _winapi.GENERIC_READ, _FILE_SHARE_ALL, 0, _winapi.OPEN_EXISTING, 0, 0
        )
        return msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_BINARY)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def create_file(path: str) -> int:
    """Create a new file, and return a descriptor for reading and writing bytes.

    Raises:
        OSError: The file exists or cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    if sys.platform == "win32":
        flags |= os.O_BINARY
    return os.open(path, flags, _PERMISSIONS)


def copy_permissions(path: str, descriptor: int) -> None:
    """Give an open file the permissions of the file at a path.

    On Windows, files have no such permissions, and nothing is done. A new file inherits the
    permissions of its folder.

    Raises:
        FileNotFoundError: The path does not exist, except on Windows.
    """
    if sys.platform != "win32":
        os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))


def allow_open_files(count: int) -> None:
    """Increase the soft limit of open files, as far as allowed, if the limit is below ``count``.

    On Windows, which has no such limit, nothing is done.
    """
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= count:
            return
        max_soft = hard
        if sys.platform == "darwin" and (hard == resource.RLIM_INFINITY or hard > _OPEN_MAX):
            max_soft = _OPEN_MAX
        raised = _RAISE * count
        if max_soft != resource.RLIM_INFINITY:
            raised = min(raised, max_soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))


# ---------------------------------------------------------------- names


def replace_file(new: str, path: str, aside: str, new_path: Callable[[], str]) -> str | None:
    """Rename a file, and replace an existing file at the new path.

    Windows cannot replace a file that is open or mapped, but can rename a file that was opened by
    `open_to_read`. In this case, the function renames both files. Mappings of the replaced file
    remain valid. Between the two renames, the new path does not exist.

    Args:
        new: The path of a closed file.
        path: The new path.
        aside: The path of the replaced file between the two renames.
        new_path: A function that returns an unused path in the same folder, for a replaced file
            that is still in use.

    Returns:
        The path of the replaced file if it is still in use on Windows; otherwise None.

    Raises:
        OSError: The file cannot be renamed. The existing file is unchanged.
    """
    if CAN_REMOVE_OPEN_FILES:
        os.replace(new, path)
        return None
    try:
        os.replace(new, path)
        return None
    except OSError:  # Windows has several error codes for files in use
        if not os.path.isfile(path):
            raise
    os.rename(path, aside)
    try:
        os.rename(new, path)
    except OSError:
        os.rename(aside, path)
        raise
    try:
        return remove_file(aside, new_path)
    except OSError:
        return aside


def remove_file(path: str, new_path: Callable[[], str]) -> str | None:
    """Remove a file. On Windows, a file that is open or mapped is renamed; see `replace_file`.

    Args:
        path: The path of the file.
        new_path: A function that returns an unused path in the same folder, for a file that is in
            use.

    Returns:
        The new path of the file, or None if it was removed.

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
    except OSError:  # the file is in use or does not exist
        return False
    return True


# ---------------------------------------------------------------- content

if sys.platform == "win32":
    # not a `forks.Lock`, because Windows has no forks
    _position_lock = threading.Lock()

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        """Write bytes at an offset, and return the number of written bytes. Thread-safe."""
        with _position_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)

    def pread(descriptor: int, nbytes: int, offset: int) -> bytes:
        """Return up to ``nbytes`` bytes at an offset. Thread-safe."""
        with _position_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, nbytes)

else:
    pwrite = os.pwrite
    pread = os.pread


def copy_range(source: int, target: int, nbytes: int, start: int, offset: int) -> int:
    """Copy bytes between files by a system call, and return the number of copied bytes.

    The result is 0 if the call fails or is not available. The caller must then copy the bytes by
    reading and writing, which raises an exception for an error.

    Args:
        source: The descriptor to read from.
        target: The descriptor to write to.
        nbytes: The maximum number of bytes to copy.
        start: The offset in the source.
        offset: The offset in the target.
    """
    # Python lacks this function if it was built with an old C library.
    if sys.platform == "linux" and hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):
            return os.copy_file_range(source, target, nbytes, start, offset)
    return 0


def release_pages(mapped: mmap.mmap, start: int, nbytes: int) -> None:
    """Remove unmodified pages of a mapped file from the memory of this process.

    The system reads the pages again on access. On Windows, nothing is done. Windows itself removes
    such pages if memory is scarce.
    """
    if sys.platform != "win32":
        mapped.madvise(mmap.MADV_DONTNEED, start, nbytes)


# ---------------------------------------------------------------- the disk


def sync_file(descriptor: int) -> None:
    """Wait until the content of a file that is open for writing is on the disk."""
    if sys.platform == "darwin":
        # On macOS, fsync does not wait for the cache of the disk, according to its manual page.
        with contextlib.suppress(OSError):  # not supported by the file system
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Write the content of a file to the disk.

    On some systems, the metadata or the cache of the disk may be written later. The caller must
    call `sync_file` afterwards.
    """
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_path(path: str | os.PathLike[str]) -> None:
    """Wait until the content of the file at a path is on the disk."""
    # Windows syncs only files that are open for writing.
    mode = "r+b" if sys.platform == "win32" else "rb"
    with open(path, mode) as file:
        sync_file(file.fileno())


def sync_folder(path: str) -> None:
    """Wait until the entries of a folder are on the disk, if the system supports this."""
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
    """Return whether a user other than this one and root owns a file or folder or can write to it.

    The owner is another user, or the permissions allow the group or others to write. The result is
    False on Windows, where the status of a file does not contain its access rights.
    """
    if sys.platform == "win32":
        return False
    return status.st_uid not in (os.geteuid(), 0) or bool(status.st_mode & 0o022)


def user_and_group() -> tuple[int, int]:
    """Return the user and group IDs of this process. On Windows, these are 0."""
    if sys.platform == "win32":
        return (0, 0)
    return (os.getuid(), os.getgid())
