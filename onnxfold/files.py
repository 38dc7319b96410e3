"""Files that appear at their place complete or not at all.

There is one protocol. New files are written beside their target under temporary names, and synced.
One rename is the commit. What the new state does not name is removed afterwards.

A writer holds a lock beside its target meanwhile. The system releases the lock of a process that
dies, but its file stays: whoever gets the lock of a target knows that temporary files of that
target are leftovers, and removes them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from onnxfold.errors import OnnxFoldError

_LOCK = "lock"


@dataclass
class NewFile:
    """A temporary file.

    Attributes:
        fd: Its descriptor, for reading and writing.
        path: Its path.
    """

    fd: int
    path: str


def os_error(error: OSError, path: str) -> OnnxFoldError:
    """Return the library's error for a failed system call on ``path``."""
    return OnnxFoldError(f"cannot be written: {error.strerror or error}", file=path)


def prefix(target: str) -> str:
    """Return the beginning of the paths of temporary files of ``target``."""
    folder, name = os.path.split(target)
    if len(os.fsencode(name)) > 200 or not is_text(name):  # a model may have to refer to the file
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:24]
    return os.path.join(folder, f".{name}.onnxfold-")


def is_text(name: str) -> bool:
    """Return whether the name of a file can be written into a model: names may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def temporary_path(target: str, kind: str = "tmp") -> str:
    """Return a new path for a temporary file or folder of ``target``, in the same folder.

    Args:
        target: What it stands for.
        kind: How the path ends. What ends in ``tmp`` is removed when the target is locked next.
    """
    return f"{prefix(target)}{secrets.token_hex(4)}.{kind}"


@contextlib.contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of ``target``; leftovers of a killed holder are removed first.

    Returns:
        Whether the lock's file existed: another holder was waited for, or had been killed.

    Raises:
        OSError: The folder is missing, not writable, or full.
    """
    path = prefix(target) + _LOCK
    found = os.path.lexists(path)
    with _held(path):
        yield found


def remove_leftovers(folder: str, name: str = "*") -> None:
    """Remove temporary files and folders of targets whose writers were killed.

    Args:
        folder: Where the targets are.
        name: A pattern for their names, see `glob`.
    """
    for path in glob.glob(os.path.join(glob.escape(folder), f".{name}.onnxfold-{_LOCK}")):
        with contextlib.suppress(OSError), _held(path, blocking=False):
            pass


@contextlib.contextmanager
def _held(lock: str, *, blocking: bool = True, is_new: bool = False) -> Iterator[None]:
    from filelock import FileLock  # the command line must be able to help without it

    if not is_new:  # filelock retries forever where a file cannot be created, as below /proc
        os.close(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    with FileLock(lock, mode=0o666, blocking=blocking, thread_local=False):
        try:
            pattern = f"{glob.escape(lock.removesuffix(_LOCK))}????????.tmp"
            for path in () if is_new else glob.glob(pattern):
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    remove(path)
            yield
        finally:
            remove(lock)  # before the release: filelock does not take a lock whose file is gone


@contextlib.contextmanager
def new_file(target: str, path: str | None = None) -> Iterator[NewFile]:
    """Create a temporary file with the permissions of ``target``, to be renamed.

    Otherwise it is removed at the end.

    Args:
        target: The file whose place it will take. Its lock should be held.
        path: Where it is created, if not at a `temporary_path` of ``target``.

    Raises:
        OSError: The folder is missing, not writable, or full.
    """
    new = NewFile(-1, path or temporary_path(target))
    try:
        new.fd = os.open(new.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(new.fd, stat.S_IMODE(os.stat(target).st_mode))
        yield new
    finally:
        if new.fd >= 0:
            os.close(new.fd)
        remove(new.path)


@contextlib.contextmanager
def replacing(target: str, *, fsync: bool = False) -> Iterator[BinaryIO]:
    """Write a file that takes the place of ``target`` at the end, unless there is an error.

    Raises:
        OSError: The folder is missing, not writable, or full.
    """
    with locked(target), new_file(target) as new:
        with open(new.fd, "w+b", closefd=False) as file:
            yield file
        if fsync:
            os.fsync(new.fd)
        os.replace(new.path, target)
        if fsync:
            sync_folder(os.path.dirname(target))


@contextlib.contextmanager
def scratch_folder(purpose: str, parent: str | None = None) -> Iterator[str]:
    """Make a folder, which is removed at the end; return its real path.

    A process that is killed leaves it. The first call of another process, with the same purpose and
    parent, removes it.

    Args:
        purpose: A part of its name.
        parent: Where it is made; None for the folder of temporary files.

    Raises:
        OSError: The folder cannot be made.
    """
    parent = os.path.realpath(parent or tempfile.gettempdir())
    _remove_scratch(parent, purpose)
    target = os.path.join(parent, f"{purpose}-{secrets.token_hex(4)}")
    with _held(prefix(target) + _LOCK, is_new=True):
        path = temporary_path(target)
        try:
            os.mkdir(path, 0o700)
            yield path
        finally:
            try:
                shutil.rmtree(path, ignore_errors=True)
            finally:  # for a removal that a signal has interrupted
                shutil.rmtree(path, ignore_errors=True)


@functools.cache  # a folder of temporary files may have many entries
def _remove_scratch(parent: str, purpose: str) -> None:
    remove_leftovers(parent, f"{glob.escape(purpose)}-????????")


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk, where the file system can do that."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove ``path``; that it is gone already, or cannot be removed, is no failure."""
    with contextlib.suppress(OSError):
        os.unlink(path)
