"""A component of a runtime_fold, prepared for compiling."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.runtime.backends.base import Values, weights_of
from onnxfold.runtime.backends.canonical import canonical
from onnxfold.runtime.backends.demands import Demands, demands
from onnxfold.runtime.backends.prepare import prepare
from onnxfold.runtime.splitting.parts import RuntimeFold


class Component:
    """A part of runtime_fold that shares no node with the rest, as a model of its own.

    Args:
        fold: All of runtime_fold.
        outputs: Names of the outputs of the part.

    Attributes:
        outputs: Names of its outputs.
        inputs: Names of the runtime constants that it reads.
        dtypes: Of the outputs, as NumPy calls them.
        model: What is compiled.
        weights: Names of the weights that the kernel is given behind the inputs.
        content: The serialized model that is compiled: the same for components that differ in
            names and in these weights only.
        graph_hash: SHA-256 of that.
        demands: What its inputs must be, or why it is not compiled.
    """

    def __init__(self, fold: RuntimeFold, outputs: Sequence[str]) -> None:
        self._fold = fold
        self.model = fold.part(outputs, defaults=False)
        self.outputs = [v.name or "" for v in self.model.graph.outputs]
        self.inputs = [v.name or "" for v in self.model.graph.inputs]
        types = [v.dtype for v in self.model.graph.outputs]
        self.dtypes = [str(dtype.numpy().name) for dtype in types if dtype is not None]
        self.weights = prepare(self.model)
        self.content = canonical(self.model)
        self.graph_hash = hashlib.sha256(self.content).hexdigest()

    @functools.cached_property
    def original(self) -> ir.Model:
        """As it is in runtime_fold, without default values: a kernel is given every input."""
        return self._fold.part(self.outputs, defaults=False)

    def weight_arrays(self) -> Values:
        """Return the weights by name, as a kernel is given them."""
        return weights_of(self.original.graph.initializers, self.weights)

    def all_dtypes(self) -> set[ir.DataType | None]:
        """Return the element types of all values."""
        graph = self.original.graph
        return {v.dtype for v in (*graph.inputs, *(v for n in graph for v in n.outputs))}

    @functools.cached_property
    def demands(self) -> Demands:  # noqa: D102  an attribute
        return demands(self.original)
