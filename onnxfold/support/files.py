"""Atomic writes of files, locks, and temporary folders.

New files are written in the folder of their target under temporary names. A rename then commits the
files. Meanwhile, the writer holds a lock file in the same folder. If the process is killed, the
system releases the lock, but the lock file and temporary files remain. The next process that
acquires the lock removes the temporary files of the target.

A forked process inherits the open contexts of its parent. The files and folders belong to the
parent, so a context that exits in the child does not remove them.
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
"""Nanoseconds within which two changes of a file may have the same time."""

_LOCK = "lock"
# Maximum bytes of the name of a target in temporary names. File systems limit names to 255 bytes.
# The difference leaves room for a prefix and a suffix.
_MAX_NAME_BYTES = 200

_OLD = "old"
"""On Windows, the end of the name of a replaced file between the two renames that replace it."""


@dataclass
class NewFile:
    """The path and the descriptor of a temporary file. The descriptor is -1 after `close`."""

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
    """Raise a UsageError if a path to write to is empty or contains a NUL character."""
    name = os.fsdecode(os.fspath(path))
    if not name or "\0" in name:
        raise UsageError(f"{name!r} is not a valid path")


def prefix(target: str) -> str:
    """Return the common prefix of the paths of the lock and the temporary files of ``target``."""
    folder, name = os.path.split(target)
    # models contain names of external data, so the name must be valid UTF-8
    if len(os.fsencode(name)) > _MAX_NAME_BYTES or not is_text(name):
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:24]
    return os.path.join(folder, f".{name}.onnxfold-")


def is_text(name: str) -> bool:
    """Return whether the name of a file is valid UTF-8, as models require.

    On POSIX systems, names can be arbitrary bytes.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def temporary_path(target: str, kind: str = "tmp") -> str:
    """Return a new path for a temporary file or folder of ``target``, in the same folder.

    Files and folders of the kind ``tmp`` that a killed process leaves are removed when the target
    is locked next.
    """
    return f"{prefix(target)}{secrets.token_hex(4)}.{kind}"


@contextlib.contextmanager
def locked(target: str) -> Iterator[bool]:
    """Hold the lock of ``target``, and first remove files that killed processes left.

    The value of the context is whether the lock file existed before. A killed process may have left
    it, or another process may have held it.
    """
    path = prefix(target) + _LOCK
    existed = os.path.lexists(path)
    with _held(path):
        _restore_old(target)
        yield existed


def restore(path: str) -> bool:
    """Restore the file at a path if a process was killed while it replaced the file on Windows.

    If a running process replaces the file, this function waits until the process has finished.

    Returns:
        Whether the path is a file now. On other systems than Windows, the result is always False,
        because these systems replace a file in one step.
    """
    if CAN_REMOVE_OPEN_FILES:
        return False
    target = os.path.realpath(path)
    if os.path.lexists(prefix(target) + _OLD):
        with contextlib.suppress(OSError), locked(target):  # restores the file
            pass
    return os.path.isfile(target)


def _restore_old(target: str) -> None:
    """Rename the replaced file back to the target, or remove it if the target exists.

    The caller must hold the lock of the target.
    """
    if CAN_REMOVE_OPEN_FILES:
        return
    old = prefix(target) + _OLD
    with contextlib.suppress(OSError):  # usually, the replaced file does not exist
        try:
            os.rename(old, target)
        except FileExistsError:  # on Windows, `os.rename` does not replace a file
            system.remove_file(old, lambda: temporary_path(target))


def remove_leftovers(folder: str, name: str = "*") -> None:
    """Remove temporary files of killed processes from a folder.

    On Windows, this includes files that could not be removed because they were open or mapped.

    Args:
        folder: The folder of the targets.
        name: A glob for the names of the targets.
    """
    locks = glob.glob(os.path.join(glob.escape(folder), f".{name}.onnxfold-{_LOCK}"))
    if not CAN_REMOVE_OPEN_FILES:
        leftovers = glob.glob(os.path.join(glob.escape(folder), f".{name}.onnxfold-????????.tmp"))
        locks += {path[: -len("????????.tmp")] + _LOCK for path in leftovers}.difference(locks)
    for path in locks:
        with contextlib.suppress(OSError), _held(path, blocking=False):
            pass


@contextlib.contextmanager
def _held(lock: str, *, blocking: bool = True, is_new: bool = False) -> Iterator[None]:
    from filelock import FileLock  # `onnxfold --help` also works without this package

    owner = os.getpid()
    if not is_new:  # filelock retries forever if a file cannot be created, for example in /proc
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
                # before the release, because filelock does not acquire a removed lock file
                remove(lock)


@contextlib.contextmanager
def new_file(target: str, path: str | None = None) -> Iterator[NewFile]:
    """Create a temporary file with the permissions of ``target``, if the target exists.

    The caller should hold the lock of the target. The file is removed at the end of the context
    unless the caller has renamed the file. ``path`` is the path of the file; None for a new path.
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
    """Open a temporary file that replaces ``target`` at the end, unless an error occurs.

    The lock of the target is held meanwhile. The content is not synced to the disk.
    """
    with locked(target), new_file(target) as new:
        with open(new.fd, "w+b", closefd=False) as file:
            yield file
        new.close()
        replace_file(new.path, target)


def replace_file(new: str, path: str, target: str | None = None) -> str | None:
    """Replace the file at a path by a closed file. Memory mappings of the old file remain valid.

    On Windows, this may take two renames. If the process is killed between the renames, the old
    file is restored when the target is locked or loaded next; see `restore`.

    Args:
        new: The path of the new file.
        path: The path to replace.
        target: The target whose lock is held; None if the path itself is the target.

    Returns:
        The new path of the old file if the old file is mapped on Windows and cannot be removed yet.
        It is removed when the target is locked next. In all other cases, None.

    Raises:
        OSError: The file cannot be replaced.
    """
    target = target or path
    # Only the target needs a path from which it can be restored. The old content of the target does
    # not depend on the other files while these are replaced.
    aside = prefix(path) + _OLD if path == target else temporary_path(target)
    return system.replace_file(new, path, aside, lambda: temporary_path(target))


def remove_file(target: str, path: str) -> str | None:
    """Remove a file that belongs to a target, and ignore errors.

    Returns the new path of a file that Windows cannot remove yet, or None; see `replace_file`.
    """
    with contextlib.suppress(OSError):
        return system.remove_file(path, lambda: temporary_path(target))
    return None


def rename_folder(folder: str, path: str) -> None:
    """Rename a folder to a path that does not exist.

    Raises:
        OSError: The folder cannot be renamed, for example because a file in it is in use on
            Windows.
    """
    end_unused_mappings()
    os.rename(folder, path)


def remove_folder(path: str) -> None:
    """Remove a folder with its contents, and ignore errors."""
    shutil.rmtree(path, ignore_errors=True)
    if not CAN_REMOVE_OPEN_FILES and os.path.lexists(path):
        end_unused_mappings()
        shutil.rmtree(path, ignore_errors=True)


def end_unused_mappings() -> None:
    """End the mappings of unused models on Windows, where a mapped file cannot be removed.

    Unused models and graphs are reference cycles. Their files remain mapped until the garbage
    collection that this function runs. On other systems, nothing is done.
    """
    if not CAN_REMOVE_OPEN_FILES:
        gc.collect()


@contextlib.contextmanager
def scratch_folder(purpose: str, parent: str | None = None) -> Iterator[str]:
    """Create a temporary folder that is removed at the end of the context.

    The first call of a process for a purpose and a parent also removes folders that killed
    processes left there.

    Args:
        purpose: The prefix of the folder's name.
        parent: The folder in which the new folder is created. None for the system's folder of
            temporary files.

    Yields:
        The real path of the folder.
    """
    owner = os.getpid()
    parent = os.path.realpath(parent or tempfile.gettempdir())
    _remove_scratch(parent, purpose)
    in_use = THIS_PROCESS.shared(_FoldersInUse)
    in_use.remove_unused()
    target = os.path.join(parent, f"{purpose}-{secrets.token_hex(4)}")
    with _held(prefix(target) + _LOCK, is_new=True):
        path = temporary_path(target)
        try:
            os.mkdir(path, 0o700)
            yield path
        finally:
            if os.getpid() == owner:
                try:
                    remove_folder(path)
                finally:  # a signal may have interrupted the removal
                    shutil.rmtree(path, ignore_errors=True)
                if os.path.lexists(path):
                    in_use.add(path)


class _FoldersInUse(set[str]):
    """Scratch folders that Windows did not remove, because this process still maps their files.

    After the process has ended, the next process with the same purpose and parent removes them.
    """

    def remove_unused(self) -> None:
        """Remove the folders whose files are no longer mapped."""
        for path in tuple(self):
            shutil.rmtree(path, ignore_errors=True)
            if not os.path.lexists(path):
                self.discard(path)


def folder_of(owner: object, purpose: str) -> str:
    """Return a new temporary folder that is removed when its owner is destroyed, or Python exits.

    `ProcessState.close` also removes the folder. A forked process must create its own folder,
    because its parent removes this one.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder(purpose))
        THIS_PROCESS.close_with(owner, stack.pop_all().close)
    return folder


@functools.cache  # a folder of temporary files may have many entries, so it is searched once
def _remove_scratch(parent: str, purpose: str) -> None:
    remove_leftovers(parent, f"{glob.escape(purpose)}-????????")


def remove(path: str) -> None:
    """Remove a file, and ignore errors such as a missing file."""
    with contextlib.suppress(OSError):
        os.unlink(path)
