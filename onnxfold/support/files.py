"""Write files atomically.

New files are written beside their target under temporary names, and synced. One rename is the
commit. A writer holds a lock file beside its target meanwhile. The system releases the lock of a
killed process, but its file stays: the next process that acquires the lock removes the leftover
temporary files of the target.

A forked process inherits the open contexts of its parent. The files and folders still belong to the
parent, so a context that exits in the child removes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import glob
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from onnxfold.support import system
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import CAN_REMOVE_OPEN_FILES, copy_permissions, create_file

RECENT = 2_000_000_000
"""Nanoseconds in which a file may change again and have the same times of change."""

_LOCK = "lock"


@dataclass
class NewFile:
    """A temporary file: its descriptor for reading and writing, -1 if closed, and its path."""

    fd: int
    path: str

    def close(self) -> None:
        """Close the descriptor if it is open. Windows does not rename open files."""
        if self.fd >= 0:
            descriptor, self.fd = self.fd, -1
            os.close(descriptor)


def os_error(error: OSError, path: str) -> OnnxFoldError:
    """Return an OnnxFoldError for a failed system call on ``path``."""
    reason = f"cannot be written: {error.strerror or error}"
    if isinstance(error, PermissionError) and not CAN_REMOVE_OPEN_FILES:
        reason += "; close sessions and programs that use the file, or give another path"
    return OnnxFoldError(reason, file=path)


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path to write to that cannot be one: an empty one, or one with a NUL character."""
    name = os.fsdecode(os.fspath(path))
    if not name or "\0" in name:
        raise UsageError(f"{name!r} names no file or folder")


def prefix(target: str) -> str:
    """Return the common prefix of the paths of temporary files of ``target``."""
    folder, name = os.path.split(target)
    if len(os.fsencode(name)) > 200 or not is_text(name):  # models may refer to such files
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:24]
    return os.path.join(folder, f".{name}.onnxfold-")


def is_text(name: str) -> bool:
    """Return whether the name of a file is valid text for a model, as names may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def temporary_path(target: str, kind: str = "tmp") -> str:
    """Return a new path for a temporary file or folder of ``target``, in the same folder. Those
    that end in ``tmp`` are removed when the target is locked next.
    """
    return f"{prefix(target)}{secrets.token_hex(4)}.{kind}"


@contextlib.contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of ``target``; leftovers of a killed process are removed first. The value of
    the context is whether the lock file existed: of another process, or a leftover.
    """
    path = prefix(target) + _LOCK
    found = os.path.lexists(path)
    with _held(path):
        yield found


def remove_leftovers(folder: str, name: str = "*") -> None:
    """Remove what killed processes have left of targets in a folder, by a pattern of names.

    On Windows, this includes files that were open or mapped when their process removed them.
    """
    found = glob.glob(os.path.join(glob.escape(folder), f".{name}.onnxfold-{_LOCK}"))
    if not CAN_REMOVE_OPEN_FILES:
        kept = glob.glob(os.path.join(glob.escape(folder), f".{name}.onnxfold-????????.tmp"))
        found += {path[: -len("????????.tmp")] + _LOCK for path in kept}.difference(found)
    for path in found:
        with contextlib.suppress(OSError), _held(path, blocking=False):
            pass


@contextlib.contextmanager
def _held(lock: str, *, blocking: bool = True, is_new: bool = False) -> Iterator[None]:
    from filelock import FileLock  # the command line must show its help without this package

    owner = os.getpid()
    if not is_new:  # filelock retries forever if a file cannot be created, as below /proc
        os.close(os.open(lock, os.O_RDWR | os.O_CREAT, 0o666))
    with FileLock(lock, mode=0o666, blocking=blocking, thread_local=False):
        try:
            pattern = f"{glob.escape(lock.removesuffix(_LOCK))}????????.tmp"
            for path in () if is_new else glob.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
                remove(path)  # a file
            yield
        finally:
            if os.getpid() == owner:
                remove(lock)  # before the release: filelock does not acquire a missing lock file


@contextlib.contextmanager
def new_file(target: str, path: str | None = None) -> Iterator[NewFile]:
    """Create a temporary file with the permissions of ``target``, whose lock should be held, to be
    renamed. If it is not renamed, it is removed at the end.
    """
    owner = os.getpid()
    new = NewFile(-1, path or temporary_path(target))
    try:
        new.fd = create_file(new.path)
        with contextlib.suppress(FileNotFoundError):
            copy_permissions(target, new.fd)
        yield new
    finally:
        new.close()
        if os.getpid() == owner:
            remove(new.path)


@contextlib.contextmanager
def replacing(target: str) -> Iterator[BinaryIO]:
    """Write a file that replaces ``target`` at the end, unless there is an error."""
    with locked(target), new_file(target) as new:
        with open(new.fd, "w+b", closefd=False) as file:
            yield file
        new.close()
        put_in_place(new.path, target)


def put_in_place(new: str, path: str, target: str | None = None) -> str | None:
    """Rename a closed file over the one at a path, of which mappings stay valid.

    Args:
        new: The path of the new file.
        path: The path that it gets.
        target: The target whose lock is held; None for the path itself.

    Returns:
        A path of the replaced file if that cannot be removed yet, as it is mapped on Windows. The
        file is removed when the target is locked next.
    """
    return system.replace_file(new, path, lambda: temporary_path(target or path))


def remove_of(target: str, path: str) -> str | None:
    """Remove a file that belongs to a target, ignoring errors; see `put_in_place`."""
    with contextlib.suppress(OSError):
        return system.remove_file(path, lambda: temporary_path(target))
    return None


def rename_folder(folder: str, path: str) -> None:
    """Rename a folder to a path without one. On Windows, no file in it may be in use."""
    _end_unused_mappings()
    os.rename(folder, path)


def _end_unused_mappings() -> None:
    """Destroy objects that nothing uses, on Windows, which does not remove their mapped files.

    Models and graphs are reference cycles.
    """
    if not CAN_REMOVE_OPEN_FILES:
        gc.collect()


@contextlib.contextmanager
def scratch_folder(purpose: str, parent: str | None = None) -> Iterator[str]:
    """Create a folder, which is removed at the end; return its real path. The folder of a killed
    process is removed by the first call of another process with the same purpose and parent (None:
    the folder of temporary files).
    """
    owner = os.getpid()
    parent = os.path.realpath(parent or tempfile.gettempdir())
    _remove_scratch(parent, purpose)
    target = os.path.join(parent, f"{purpose}-{secrets.token_hex(4)}")
    with _held(prefix(target) + _LOCK, is_new=True):
        path = temporary_path(target)
        try:
            os.mkdir(path, 0o700)
            yield path
        finally:
            if os.getpid() == owner:
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:  # a signal may interrupt the removal
                    _end_unused_mappings()
                    shutil.rmtree(path, ignore_errors=True)


def folder_of(owner: object, purpose: str) -> str:
    """Create a temporary folder that is removed when its owner is destroyed, or Python exits.

    A forked process must create its own: the folder is removed with the owner in this process.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder(purpose))
        THIS_PROCESS.close_with(owner, stack.pop_all().close)
    return folder


@functools.cache  # a folder of temporary files may have many entries
def _remove_scratch(parent: str, purpose: str) -> None:
    remove_leftovers(parent, f"{glob.escape(purpose)}-????????")


def remove(path: str) -> None:
    """Remove ``path``, ignoring a missing file and errors."""
    with contextlib.suppress(OSError):
        os.unlink(path)
