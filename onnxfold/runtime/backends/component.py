"""The components of a runtime_fold: parts that share no node, each a model of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.constants import captured_values
from onnxfold.runtime.backends.prepare import prepare
from onnxfold.runtime.parts import restricted


class Component:
    """A part of runtime_fold, prepared for compiling.

    Attributes:
        original: As it is in runtime_fold.
        outputs: Names of its outputs.
        inputs: Names of the runtime constants that it reads.
        dtypes: Of the outputs, as NumPy calls them.
        model: What is compiled.
        weights: Names of the weights that the kernel is given behind the inputs.
    """

    def __init__(self, original: ir.Model, model: ir.Model) -> None:
        self.original = original
        self.outputs = [v.name or "" for v in original.graph.outputs]
        self.inputs = [v.name or "" for v in original.graph.inputs]
        self.dtypes = [_dtype_name(v) for v in original.graph.outputs]
        self.model = model
        self.weights = prepare(model)
        model.metadata_props.clear()
        model.graph.metadata_props.clear()

    @cached_property
    def content(self) -> bytes:
        """The serialized model that is compiled."""
        serialized: bytes = storage.to_proto(self.model).SerializeToString(deterministic=True)
        return serialized

    @cached_property
    def graph_hash(self) -> str:
        """SHA-256 of what is compiled."""
        return hashlib.sha256(self.content).hexdigest()


class RuntimeFold:
    """A runtime_fold that components are taken from; it is not changed.

    Args:
        model: All of it.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._outputs = {v.name: v for v in self._model.graph.outputs}
        self._order = {node: k for k, node in enumerate(self._model.graph)}

    def component(self, outputs: Sequence[str]) -> Component:
        """The part that makes some outputs. It costs as much as that part has nodes."""
        return Component(self._part(outputs), self._part(outputs))

    def _part(self, outputs: Sequence[str]) -> ir.Model:
        whole = self._model
        if whole.functions:  # what a part calls is not seen by looking at its nodes
            return restricted(whole.clone(), outputs)
        wanted = [self._outputs[name] for name in outputs]
        nodes, read = self._above(wanted)
        view = ir.GraphView(
            [v for v in whole.graph.inputs if v in read],
            wanted,
            nodes=sorted(nodes, key=self._order.__getitem__),
            initializers=sorted(
                (v for v in read if v.is_initializer()), key=lambda v: v.name or ""
            ),
            opset_imports=whole.graph.opset_imports,
            name=whole.graph.name,
        )
        return ir.Model(view.clone(), ir_version=whole.ir_version)

    def _above(self, outputs: Sequence[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]]:
        """Nodes that outputs are made by, and what these read that no node makes."""
        nodes: set[ir.Node] = set()
        read: set[ir.Value] = set()
        pending = list(outputs)
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None:
                read.add(value)
            elif node not in nodes:
                nodes.add(node)
                captured = captured_values(node) if node.attributes else []
                pending.extend(v for v in (*node.inputs, *captured) if v is not None)
        return nodes, read


def _dtype_name(value: ir.Value) -> str:
    assert value.dtype is not None
    return str(value.dtype.numpy().name)
