"""A model to compare, however it was given, opened so that runtimes and the graph can use it."""

from __future__ import annotations

import contextlib
import os

import onnx
import onnx_ir as ir

from onnxfold import files, storage
from onnxfold.comparison.random_feeds import Feeds
from onnxfold.errors import UsageError
from onnxfold.storage import ModelLike


class Subject(contextlib.ExitStack):
    """A model as a graph (`model`) and as the path of a file that a runtime loads (`source`).

    A path is passed on as it is. A model in memory goes to a temporary folder, gone when it is
    left, with its weights as external data, so that size and weights that live in other files do
    not matter.

    Attributes:
        inputs: The graph inputs that must be fed: those without a default value.
        overridable: The graph inputs that have an initializer as their default.
        outputs: Names of the graph outputs.

    Raises:
        ModelError: The file cannot be read as a model.
        UsageError: It is no model, or a ModelProto that refers to external data: in memory it has
            no folder.
    """

    def __init__(self, given: ModelLike, name: str) -> None:
        super().__init__()
        given = storage.model_in(given)
        if isinstance(given, (onnx.ModelProto, ir.Model)):
            self.name = name
            self.model = given if isinstance(given, ir.Model) else storage.from_proto(given)
            for value in () if self.model is given else self.model.graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    raise UsageError(
                        f"weight {value.name!r} of the model in memory is external data; "
                        "compare the model by its path"
                    )
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(files.scratch_folder("compare"))
                self.source = os.path.join(folder, "model.onnx")
                storage.save(self.model, self.source, external_data=True, fsync=False)
                self.push(stack.pop_all())
        else:
            self.source = self.name = os.fspath(given)
            self.model = storage.load(given)
        graph = self.model.graph
        self.inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        self.overridable = [v for v in graph.inputs if v.name in graph.initializers]
        self.outputs = [value.name or "" for value in graph.outputs]

    def accepted(self, feeds: Feeds) -> Feeds:
        """Return the feeds without those that the model has no input for."""
        names = {value.name for value in self.model.graph.inputs}
        return {name: feed for name, feed in feeds.items() if name in names}
