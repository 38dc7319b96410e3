"""A model to compare, however it was given, opened so that runtimes and the graph can use it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onnxfold import files, storage
from onnxfold.errors import UsageError
from onnxfold.storage import ModelLike

if TYPE_CHECKING:
    from typing_extensions import Self


class Subject:
    """A model as a graph (`model`) and as what a runtime loads (`source`: a path, or bytes).

    A path is passed on as it is. A model in memory is serialized; one of onnx-ir goes to a
    temporary folder, gone when it is left, with its weights as external data, so that size and
    weights that live in other files do not matter.

    Raises:
        ModelError: The file cannot be read as a model.
        UsageError: It is no model, or a ModelProto that refers to external data: in memory it has
            no folder.
    """

    def __init__(self, given: ModelLike, name: str) -> None:
        self._folder = contextlib.ExitStack()
        self.source: str | bytes
        given = storage.model_in(given)
        if isinstance(given, onnx.ModelProto):
            self.name = name
            self.model = storage.from_proto(given)
            _refuse_external_data(self.model)
            self.source = given.SerializeToString()
        elif isinstance(given, ir.Model):
            self.name = name
            self.model = given
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(files.scratch_folder("compare"))
                self.source = str(Path(folder) / "model.onnx")
                storage.save(given, self.source, external_data=True, fsync=False)
                self._folder = stack.pop_all()
        else:
            self.source = self.name = os.fspath(given)
            self.model = storage.load(given)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.close()

    @property
    def inputs(self) -> list[ir.Value]:
        """The graph inputs that must be fed: those without a default value."""
        graph = self.model.graph
        return [value for value in graph.inputs if value.name not in graph.initializers]

    @property
    def overridable(self) -> list[ir.Value]:
        """The graph inputs that have an initializer as their default."""
        graph = self.model.graph
        return [value for value in graph.inputs if value.name in graph.initializers]

    @property
    def outputs(self) -> list[str]:
        """Names of the graph outputs."""
        return [value.name or "" for value in self.model.graph.outputs]


def _refuse_external_data(model: ir.Model) -> None:
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            raise UsageError(
                "the model in memory refers to external data; compare it by its path",
                node=value.name,
            )
