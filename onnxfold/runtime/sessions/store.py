"""Folded tensors in a folder that all processes of a machine share.

A file has the folded tensors of one key. It appears complete or not at all, is never written to
again, and may go at any moment: who has it mapped keeps its pages. Who makes one holds a lock
meanwhile, which others wait for; the system drops the lock of a process that dies, and what the
process has written is taken over by the next one, or removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from importlib import metadata

from onnxfold import files
from onnxfold.errors import ModelError, OnnxFoldError, UsageError
from onnxfold.memory import give_back_freed
from onnxfold.runtime.backends.cpu import cpu_features
from onnxfold.runtime.least_recently_used import files_of, shrink, touch
from onnxfold.runtime.safetensors import TensorFile, layout_of
from onnxfold.runtime.sessions.folded import Folded
from onnxfold.runtime.sessions.remote import Remote

logger = logging.getLogger("onnxfold")

_FORMAT = 1
_SUFFIX = ".safetensors"
_OWN_FILE = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}")


@dataclass(frozen=True)
class StoredFold:
    """Folded tensors, and where they are from.

    Attributes:
        folded: The folded tensors.
        made: Whether they were made now; otherwise they are of a file.
        waited: Whether another process was making them, or others, meanwhile.
    """

    folded: Folded
    made: bool
    waited: bool = False


class FoldStore:
    """A folder with folded tensors, those used least recently first out.

    Args:
        folder: The folder; made, for its owner alone, if it is not there.
        max_bytes: Most bytes of files in it.
        url: A store for many machines, see `Remote`; None for none.

    Raises:
        UsageError: Somebody else may write to the folder, or there is nothing to read ``url`` with.
        OnnxFoldError: It cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int, url: str | None) -> None:
        self.folder = os.path.realpath(folder)
        self._max_bytes = max_bytes
        self._remote = None if url is None else Remote(url)
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            if not _is_private(os.stat(self.folder)):
                reason = "is another user's folder, or one that others may write to"
                raise UsageError(reason, file=self.folder)
        except OSError as error:
            raise files.os_error(error, self.folder) from error
        files.remove_leftovers(self.folder)

    def get(self, key: Hashable, make: Callable[[], Folded]) -> StoredFold:
        """What the file of a key has; if there is none, what ``make`` gives, and the file is made.

        Without room on the disk, and for tensors that a file cannot hold, there is no file.
        """
        path = self._path(key)
        waited = False
        with contextlib.ExitStack() as stack:
            try:
                tensors = self._opened(path)
                if tensors is None:
                    waited = stack.enter_context(files.locked(path))
                    tensors = self._opened(path) or self._fetched(path)
            except OSError as error:
                logger.warning("folded tensors are not kept: %s", error)
                return StoredFold(make(), True, waited)
            if tensors is not None:
                return StoredFold(_folded(tensors), False, waited)
            made = make()
            kept = self._keep(path, made)
        if kept is not made:
            del made
            give_back_freed()
            if self._remote is not None:
                self._remote.put(path)
        return StoredFold(kept, True, waited)

    def touch(self, key: Hashable) -> None:
        """The tensors of a key are used now, by a process that has them mapped."""
        touch(self._path(key))

    def _path(self, key: Hashable) -> str:
        return os.path.join(self.folder, _name_of(key))

    def _opened(self, path: str) -> TensorFile | None:
        """The file if it is there, and what was written.

        What cannot be trusted is removed.

        Raises:
            OSError: It cannot be read, or not be removed.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if not _is_private(status := os.fstat(fd)) or not stat.S_ISREG(status.st_mode):
                reason = "somebody else may write to it"
            else:
                reason = "it is damaged"
                try:
                    tensors = TensorFile(fd, path)
                    if tensors.is_as_written():
                        touch(path)
                        return tensors
                except ModelError as error:
                    reason = str(error)
            logger.warning("%s is removed: %s", path, reason)
            os.unlink(path)
            return None
        finally:
            os.close(fd)

    def _keep(self, path: str, made: Folded) -> Folded:
        """Write tensors to a file and put it in place; the same tensors in the file's pages.

        What was made is returned where that is not possible.
        """
        layout = layout_of(made.values, {"onnxfold": metadata.version("onnxfold")})
        if layout is None or layout.nbytes > self._max_bytes:
            return made
        try:
            with files.new_file(path, private=True) as new:
                layout.write(new.fd)
                self._put_in_place(new, path, layout.nbytes)
                return _folded(TensorFile(new.fd, path))
        except (OSError, OnnxFoldError) as error:
            logger.warning("folded tensors are not kept: %s", error)
            return made

    def _put_in_place(self, new: files.NewFile, path: str, nbytes: int) -> None:
        """Make room for a file, and put it there."""
        files.remove_leftovers(self.folder)
        with files.locked(os.path.join(self.folder, "folder")):
            shrink(files_of(self.folder, _OWN_FILE), self._max_bytes - nbytes)
            os.replace(new.path, path)

    def _fetched(self, path: str) -> TensorFile | None:
        """Copy a file of the remote store if it is there, and what was written."""
        if self._remote is None:
            return None
        with files.new_file(path, private=True) as new:
            if not self._remote.fetch(os.path.basename(path), new.fd):
                return None
            try:
                nbytes = os.fstat(new.fd).st_size
                tensors = TensorFile(new.fd, path)
                if nbytes <= self._max_bytes and tensors.is_as_written():
                    self._put_in_place(new, path, nbytes)
                    return tensors
            except ModelError as error:
                logger.warning("not taken from %s: %s", self._remote.url, error)
        return None


def _name_of(key: Hashable) -> str:
    """The file's name: of a key, what makes the tensors, and the CPU, which decides about bits."""
    makers = [(name, metadata.version(name)) for name in ("onnxfold", "onnxruntime")]
    text = repr((_FORMAT, makers, cpu_features(), key))
    return hashlib.sha256(text.encode()).hexdigest() + _SUFFIX


def _is_private(status: os.stat_result) -> bool:
    """Whether nobody but this user, and the administrator, can write."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _folded(tensors: TensorFile) -> Folded:
    return Folded(tensors.values, tensors.nbytes)
