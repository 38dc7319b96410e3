"""Files that appear at their place complete or not at all.

A file is written beside its target as ``.NAME.onnxfold-XXXXXXXX.tmp``, locked (flock) as long as
its writer lives, and renamed over the target. The system drops the lock of a process that dies,
however it dies, so the next save to the same target can tell leftovers from files being written.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import glob
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator

from onnxfold.errors import OnnxFoldError
from onnxfold.system import BINARY, HOLDS_FILES, lock, open_to_read, sync, unlock

_NEW = os.O_RDWR | os.O_CREAT | BINARY
_IN_USE = "in-use"  # in a folder that cannot be locked: open as long as its process lives


def os_error(error: OSError, path: str) -> OnnxFoldError:
    """Return the library's error for a failed system call on ``path``."""
    return OnnxFoldError(f"cannot be written: {error.strerror or error}", file=path)


def _stem(name: str) -> str:
    """Return ``name``, shortened if a longer name could not be made of it."""
    if len(os.fsencode(name)) <= 200:
        return name
    return name[:40] + hashlib.sha256(os.fsencode(name)).hexdigest()[:24]


def _temporary_path(target: str, digits: str | None = None) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{_stem(name)}.onnxfold-{digits or secrets.token_hex(4)}.tmp")


def _lock(fd: int) -> bool:
    """Lock an open file; whether somebody else had to let go of it first."""
    try:
        lock(fd, wait=False)
    except BlockingIOError:
        lock(fd)
        return True
    return False


class TempFile:
    """A file being written beside its target.

    Attributes:
        fd: Its descriptor, open for reading and writing; it carries the lock. -1 when it is closed.
        path: Its temporary name; None once it was moved to its place.
        target: Where it is to go.
    """

    def __init__(self, target: str) -> None:
        """Choose a name; `create` makes the file, so that it can be discarded at any moment."""
        self.target = target
        self.fd = -1
        self.path: str | None = None
        self._status: os.stat_result | None = None

    def create(self, *, private: bool = False) -> TempFile:
        """Create the file, empty, with the permissions of its target, or the usual ones.

        Args:
            private: Nobody else may read it.

        Raises:
            OSError: The folder is missing, not writable, or full.
        """
        while True:
            self.path = _temporary_path(self.target)
            try:
                self.fd = os.open(self.path, _NEW | os.O_EXCL, 0o600 if private else 0o666)
            except FileExistsError:
                continue
            # Wait for a process that takes it for a leftover, and has the lock just now; it removes
            # the file before it lets go.
            with contextlib.suppress(OSError):
                lock(self.fd)
            if is_file(self.fd, self.path):
                break
            self.close()
        self._status = os.fstat(self.fd)
        if hasattr(os, "fchmod") and not private:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(self.fd, stat.S_IMODE(os.stat(self.target).st_mode))
        return self

    def create_alone(self) -> bool:
        """Create the file, empty, when no other process or thread does the same for its target.

        Who dies meanwhile leaves the file, and the next one takes it.

        Returns:
            Whether others were waited for; they may have put the target in place.

        Raises:
            OSError: The folder is missing, not writable, or full.
        """
        path, waited = _temporary_path(self.target, "0" * 8), False
        while True:
            fd = os.open(path, _NEW | os.O_NOFOLLOW, 0o600)
            try:
                waited |= _lock(fd)
                if is_file(fd, path):
                    os.ftruncate(fd, 0)
                    self.fd, self.path, fd = fd, path, -1
                    return waited
            finally:
                if fd >= 0:
                    os.close(fd)

    def is_at(self, path: str) -> bool:
        """Whether ``path`` leads to it, which may be closed."""
        return self._status is not None and _leads_to(path, self._status)

    def sync(self) -> None:
        """Wait until the content is on the disk."""
        sync(self.fd)

    def move(self, path: str) -> None:
        """Rename the file to ``path``, over whatever is there.

        It stays open and locked; where the system holds what is open, it is closed.
        """
        if self.path is None:
            raise ValueError("the file was moved already")
        if HOLDS_FILES:
            self.close()
        os.replace(self.path, path)
        # An interrupt before this line leads to the removal of a name that is gone, nothing worse.
        self.path = None

    def close(self) -> None:
        """Close the file and drop the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # a mapping of the file would keep the lock
                unlock(fd)
            os.close(fd)

    def discard(self) -> None:
        """Close the file, and remove it unless it was moved to its place."""
        if HOLDS_FILES:
            self.close()
        if self.path is not None:
            remove(self.path)
        self.close()


@contextlib.contextmanager
def temporary_folder(target: str) -> Iterator[str]:
    """Make a folder beside ``target``, removed at the end; it counts as a temporary file of it.

    Raises:
        OSError: The folder of ``target`` is missing, not writable, or full.
    """
    path, fd = "", -1
    try:
        while fd < 0:
            name = _temporary_path(target)
            os.mkdir(name, 0o700)
            path = name
            try:
                fd = _open_folder(path)
            except FileNotFoundError:  # somebody took it for a leftover
                continue
            with contextlib.suppress(OSError):
                lock(fd)
            if not is_file(fd, _lock_of(path)):  # likewise
                os.close(fd)
                fd = -1
        inside = os.path.join(path, "in")  # saving to it locks it, too
        os.mkdir(inside)
        yield inside
    finally:
        if HOLDS_FILES and fd >= 0:
            os.close(fd)
            fd = -1
            gc.collect()  # models that nobody has any more may still have files in it mapped
        if path:
            shutil.rmtree(path, ignore_errors=True)
        if fd >= 0:
            os.close(fd)


@contextlib.contextmanager
def scratch_folder(
    purpose: str, before: Callable[[str], None] = lambda path: None
) -> Iterator[str]:
    """Make a folder among the temporary files; return its real path. It is removed at the end.

    A process that dies leaves it behind; the next one with the same purpose removes it.

    Args:
        purpose: What it is for: a part of its name.
        before: See `remove_leftovers`.

    Raises:
        OSError: The folder cannot be made.
    """
    target = os.path.join(os.path.realpath(tempfile.gettempdir()), purpose)
    remove_leftovers(target, before)
    with temporary_folder(target) as folder:
        yield folder


def link(source: str, target: str) -> bool:
    """Make ``target`` a second name of ``source``, atomically; False where links do not exist."""
    path = _temporary_path(target)
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno in (
            errno.EPERM,
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EOPNOTSUPP,
            errno.ENOSYS,
            errno.EMLINK,
        ):
            return False
        raise
    try:
        os.replace(path, target)
    except BaseException:
        remove(path)
        raise
    return True


@contextlib.contextmanager
def marked(path: str) -> Iterator[None]:
    """Note that ``path`` comes or goes, should this process die meanwhile.

    The note is an empty file with a `fresh_name` of it. It stays if there is an error.
    """
    name = fresh_name(path)
    fd = os.open(name, _NEW | os.O_EXCL, 0o600)
    try:
        with contextlib.suppress(OSError):
            lock(fd)
        yield
        if HOLDS_FILES:
            os.close(fd)
            fd = -1
        remove(name)
    finally:
        if fd >= 0:
            os.close(fd)


def sync_folder(path: str) -> None:
    """Wait until the names in the folder of ``path`` are on the disk, if the system can."""
    if HOLDS_FILES:
        return
    fd = _open_folder(os.path.dirname(path))
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def folder_lock(path: str) -> Iterator[None]:
    """Hold the folder of ``path``, where that is possible, against others that do the same.

    Where folders have no locks, a file in this user's folder of temporary files is locked.
    """
    folder = os.path.dirname(path)
    if HOLDS_FILES:
        from filelock import FileLock

        digest = hashlib.sha256(os.fsencode(os.path.normcase(os.path.realpath(folder)))).hexdigest()
        with FileLock(os.path.join(tempfile.gettempdir(), f"onnxfold-{digest[:32]}.lock")):
            yield
        return
    try:
        fd = _open_folder(folder)
    except OSError:  # a folder that may be written to and not be read
        yield
        return
    try:
        with contextlib.suppress(OSError):
            lock(fd)
        yield
    finally:
        os.close(fd)


def _lock_of(folder: str) -> str:
    """What is open as long as somebody uses a temporary folder: the folder, or a file in it."""
    return os.path.join(folder, _IN_USE) if HOLDS_FILES else folder


def _open_folder(path: str) -> int:
    if HOLDS_FILES:
        return os.open(_lock_of(path), _NEW)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def fresh_name(path: str) -> str:
    """Return a new durable name for a file that is to become ``path`` later."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f"{_stem(name)}.onnxfold-{secrets.token_hex(4)}")


def is_fresh_name(name: str, target_name: str) -> bool:
    """Whether ``name`` is a `fresh_name` of a file called ``target_name``."""
    prefix = f"{_stem(target_name)}.onnxfold-"
    return name.startswith(prefix) and len(name) == len(prefix) + 8


def with_fresh_names(start: str, end: str) -> set[str]:
    """Return the paths with this beginning and end that have a `fresh_name` in their folder."""
    found = glob.glob(f"{glob.escape(start)}*{glob.escape(end)}.onnxfold-????????")
    return {path[: path.rindex(".onnxfold-")] for path in found}


def remove_leftovers(target: str, before: Callable[[str], None] = lambda path: None) -> None:
    """Remove temporary files for ``target`` that no living process is writing.

    Args:
        target: What they are for; with an empty name, for any file of its folder.
        before: Called with each folder before it goes.
    """
    folder, name = os.path.split(target)
    pattern = f".{glob.escape(_stem(name)) or '*'}.onnxfold-????????.tmp"
    for path in glob.glob(os.path.join(glob.escape(folder), pattern)):
        with _locked(path) as status:
            if status is not None and stat.S_ISDIR(status.st_mode):
                before(path)
                shutil.rmtree(path, ignore_errors=True)
            elif status is not None and stat.S_ISREG(status.st_mode):
                remove(path)


def remove_fresh_leftovers(
    target: str, is_needed: Callable[[str], bool], before: Callable[[str], None]
) -> None:
    """Remove files with a `fresh_name` of ``target`` that nobody is writing and nobody needs.

    Where that is the note of a process that died (`marked`), ``target`` goes, too, unless somebody
    needs it.

    Args:
        target: What they are for.
        is_needed: Called with each file.
        before: Called with each file that is to go.
    """
    folder, name = os.path.split(target)
    pattern = f"{glob.escape(_stem(name))}.onnxfold-????????"
    for path in glob.glob(os.path.join(glob.escape(folder), pattern)):
        if not is_needed(path):
            before(path)
            with _locked(path) as status:
                if status is None or not stat.S_ISREG(status.st_mode):
                    continue
                if not status.st_size and os.path.lexists(target) and not is_needed(target):
                    before(target)
                    remove(target)
                remove(path)


def remove(path: str) -> None:
    """Remove ``path``; that it is gone already, or cannot be removed, is no failure."""
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[os.stat_result | None]:
    """Lock a file or folder; None if somebody else has, or where locks do not exist.

    Who removes it does so while it is locked: a writer that was just about to take the lock sees
    that the file is gone.
    """
    if HOLDS_FILES:
        yield _status_if_free(path)
        return
    try:
        fd = open_to_read(path, follow=False)
    except OSError:
        yield None
        return
    try:
        try:
            lock(fd, wait=False)
        except OSError:
            yield None
        else:
            yield os.fstat(fd)
    finally:
        os.close(fd)


def _status_if_free(path: str) -> os.stat_result | None:
    """What ``path`` is, or None if it is in use, where the system holds files that are open."""
    try:
        status = os.lstat(path)
        file = _lock_of(path) if stat.S_ISDIR(status.st_mode) else path
        if os.path.exists(file):
            os.rename(file, file)  # refused as long as somebody has it open
    except OSError:
        return None
    return status


def is_file(fd: int, path: str) -> bool:
    """Whether ``path`` leads to the file open as ``fd``."""
    return _leads_to(path, os.fstat(fd))


def _leads_to(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except OSError:
        return False
