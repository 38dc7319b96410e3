"""A component of a runtime_fold, prepared for compiling."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold import storage
from onnxfold.graphs import all_graphs
from onnxfold.runtime.backends.base import FUNCTION
from onnxfold.runtime.backends.demands import Demands, demands
from onnxfold.runtime.backends.prepare import prepare
from onnxfold.runtime.splitting.parts import part_of


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

    def __init__(self, fold: ir.Model, outputs: Sequence[str]) -> None:
        self._fold = fold
        made = {v.name: v for v in fold.graph.outputs}
        self._made = [made[name] for name in outputs]
        self.model = part_of(fold, self._made, defaults=False)
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
        return part_of(self._fold, self._made, defaults=False)

    @functools.cached_property
    def demands(self) -> Demands:  # noqa: D102  an attribute
        return demands(self.original)


def canonical(model: ir.Model) -> bytes:
    """Serialize a model without what is not computed with: names, texts, metadata.

    Values and symbolic dimensions are called by the order in which they appear. So what is compiled
    for one layer of a model is found again for the next one.

    Args:
        model: The model; not changed.
    """
    clone = model.clone()
    common.ClearMetadataAndDocStringPass()(clone)
    values: dict[ir.Value, None] = {}
    for graph in all_graphs(clone):
        graph.name = FUNCTION
        values |= dict.fromkeys(graph.inputs)
        for node in graph:
            node.name = None
            values |= dict.fromkeys(
                v for v in (*node.inputs, *node.outputs) if v is not None and v.name
            )
            for attribute in node.attributes.values():
                attribute.doc_string = None
                if attribute.type == ir.AttributeType.TENSOR:
                    attribute.value.name = None
    for prefix in ("\0", "v"):  # an old name may be one of the new ones
        for k, value in enumerate(values):
            value.name = f"{prefix}{k}"
    dims: dict[str, str] = {}
    for value in values:
        value.doc_string = None
        value.metadata_props.clear()
        if value.shape is not None:
            names = [d if isinstance(d, int) else d.value for d in value.shape]
            value.shape = ir.Shape(
                [dims.setdefault(d, f"d{len(dims)}") if isinstance(d, str) else d for d in names]
            )
    opsets = dict(sorted(clone.opset_imports.items()))
    clone.opset_imports.clear()
    clone.opset_imports.update(opsets)
    functions = list(clone.functions.values())
    named = ir.Model(clone.graph, ir_version=clone.ir_version, functions=functions)
    content: bytes = storage.to_proto(named).SerializeToString(deterministic=True)
    return content
