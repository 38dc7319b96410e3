"""The files that a model was read from: are they what they were, and what may be written there?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NoReturn

import onnx_ir as ir

from onnxfold.errors import ModelError, UsageError
from onnxfold.storage.load import FILES_KEY, external_locations
from onnxfold.storage.mapped import MappedFile
from onnxfold.storage.tensors import FileTensor, span_of


@contextlib.contextmanager
def reading_from(model: ir.Model) -> Iterator[None]:
    """Work with a loaded model; if that fails, it may be for what others do to its files.

    Raises:
        ModelError: Another program has changed or replaced one of them.
    """
    try:
        yield
    except Exception:
        for file in model.meta.get(FILES_KEY, ()):
            file.check()
        raise


class Sources:
    """The model file and the data files of a model about to be written to ``target``.

    The model file itself may be replaced, and together with it its data files. Otherwise they hold
    weights that a model which stays refers to. Files are told apart by what they are as well as by
    name: links, and file systems that ignore case, give one file several names.

    Args:
        model: Loaded by `load`, or holding tensors that are external.
        tensors: Those of the model.
        target: The absolute path of the model to be written, links followed.
    """

    def __init__(self, model: ir.Model, tensors: Iterable[ir.TensorProtocol], target: str) -> None:
        self._files: tuple[MappedFile, ...] = model.meta.get(FILES_KEY, ())
        self._target = target
        known = {file.key for file in self._files}
        spans = [
            (tensor, span)
            for tensor in tensors
            if isinstance(tensor, (ir.ExternalTensor, FileTensor))
            and (span := span_of(tensor)) is not None
            and span.file.key not in known
        ]
        self._foreign = [span.file for tensor, span in spans if not isinstance(tensor, FileTensor)]
        self._all = {*self._files, *(span.file for _, span in spans)}

    def check_unchanged(self) -> None:
        """See that what was read is what the files held.

        Raises:
            ModelError: Another program has changed or replaced one of them meanwhile.
        """
        for file in self._all:
            file.check()

    def check_target(self) -> None:
        """See that the model may be written.

        Raises:
            UsageError: It would take the place of a data file of the source.
        """
        if _holds((*self._files[1:], *self._foreign), self._target):
            self._refuse("the model", self._target)

    def check_data(self, path: str) -> None:
        """See that a data file may be written to ``path``.

        Raises:
            UsageError: It would take the place of the source, or of a data file that the source
                goes on to need.
        """
        if _holds(self._files[:1], path):
            raise UsageError("is the model itself; give another name for the data file", file=path)
        if self.needs(path):
            self._refuse("the data file", path)

    def needs(self, path: str) -> bool:
        """Whether ``path`` leads to a data file of the source, and the source stays."""
        if _holds(self._files[1:], path):
            return os.path.realpath(self._files[0].path) != self._target
        if _holds(self._foreign, path):  # it is not known which model they belong to
            with contextlib.suppress(ModelError):
                return os.path.basename(path) not in external_locations(self._target)
            return True
        return False

    def _refuse(self, what: str, path: str) -> NoReturn:
        name = os.path.basename(self._files[0].path) if self._files else "the source"
        other = "path" if path == self._target else "name"
        raise UsageError(f"holds weights of {name!r}; give another {other} for {what}", file=path)


def _holds(files: Iterable[MappedFile], path: str) -> bool:
    """Whether ``path`` leads to one of the files, by any name."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    name = os.path.basename(path)
    return any(
        file.key[:2] == (status.st_dev, status.st_ino)
        or (os.path.basename(file.path) == name and os.path.realpath(file.path) == path)
        for file in files
    )
