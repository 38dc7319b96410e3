"""The files that a model was read from: detect changes, and prevent overwriting."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxfold.errors import ModelError, UsageError
from onnxfold.onnx_ir_private import is_a
from onnxfold.storage.load import FILES_KEY, external_locations
from onnxfold.storage.tensors import MappedFile, ViewTensor, span_of


@contextlib.contextmanager
def reading_from(model: ir.Model) -> Iterator[None]:
    """Read from a loaded model, and report errors caused by changes to its files."""
    try:
        yield
    except Exception:
        for file in model.meta.get(FILES_KEY, ()):
            file.check()
        raise


class Sources:
    """The model file and the data files of a model about to be written to ``target``.

    The model file may be replaced, and its data files together with it. Otherwise a data file may
    hold weights of another model. Files are compared by inode and by name: links, and file systems
    that ignore case, give a file several names. ``tensors`` of the model may be in other files than
    those it was loaded from.
    """

    def __init__(
        self, model: ir.Model, target: str, tensors: Iterable[ir.TensorProtocol] = ()
    ) -> None:
        self._target = target
        self._loaded: tuple[MappedFile, ...] = model.meta.get(FILES_KEY, ())
        self._all, self._data = set(self._loaded), set(self._loaded[1:])
        for tensor in tensors:
            in_model = is_a(tensor, ViewTensor)
            if (in_model or is_a(tensor, ir.ExternalTensor)) and (span := span_of(tensor)):
                self._all.add(span.file)
                if not in_model:
                    self._data.add(span.file)

    @functools.cached_property
    def replaced(self) -> set[str]:
        """The data files of the model at the target; must be read before it is replaced."""
        with contextlib.suppress(ModelError):
            return external_locations(self._target)
        return set()

    def check_unchanged(self) -> None:
        """Check that no other program has changed the files since they were read."""
        for file in self._all:
            file.check()

    def include(self, path: str) -> bool:
        """Return whether ``path`` is one of the files."""
        return _holds(self._all, path)

    def check_target(self) -> None:
        """Check that the target is no data file of the source."""
        if _holds(self._data, self._target):
            reason = f"holds weights of {self._name!r}; give another path for the model"
            raise UsageError(reason, file=self._target)

    def check_data(self, path: str) -> None:
        """Check that ``path`` is neither the source nor a data file of another model."""
        if _holds(self._loaded[:1], path):
            raise UsageError("is the model itself; give another name for the data file", file=path)
        if user := self.user(path):
            reason = f"holds weights of {user!r}; give another name for the data file"
            raise UsageError(reason, file=path)

    def user(self, path: str) -> str | None:
        """Return a remaining model that refers to the data file: the source, or one beside it."""
        data = self._data
        stays = self._loaded and os.path.realpath(self._loaded[0].path) != self._target
        if not stays:
            # The model of a tensor not loaded by `load` is unknown.
            data = data.difference(self._loaded)
        if _holds(data, path) and (stays or os.path.basename(path) not in self.replaced):
            return self._name
        return other_user(path, self._target)

    @property
    def _name(self) -> str:
        return os.path.basename(self._loaded[0].path) if self._loaded else "the source"


def other_user(data_path: str, target: str) -> str | None:
    """Return a model in the folder, other than ``target``, that refers to the data file."""
    folder, name = os.path.split(data_path)
    if os.path.lexists(data_path):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".onnx") and entry.path != target and entry.is_file():
                    with contextlib.suppress(ModelError):
                        if name in external_locations(entry.path):
                            return entry.name
    return None


def _holds(files: Iterable[MappedFile], path: str) -> bool:
    """Return whether ``path`` is one of the files, by any name."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    same = (status.st_dev, status.st_ino)
    return any(file.key[:2] == same or os.path.realpath(file.path) == path for file in files)
