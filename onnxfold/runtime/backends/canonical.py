"""One text for all models that compute the same in the same way, whatever their values are called.

So what is compiled for one layer of a model is found again for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxfold import storage
from onnxfold.runtime.backends.base import FUNCTION


def canonical(model: ir.Model) -> bytes:
    """A model, serialized, without what is not computed with: names, texts, metadata.

    Values and symbolic dimensions are called by the order in which they appear. Functions keep
    their names, and what is in them.
    """
    proto = storage.to_proto(model)
    renamed = onnx.ModelProto(ir_version=proto.ir_version)
    renamed.opset_import.extend(sorted(proto.opset_import, key=lambda opset: opset.domain))
    renamed.functions.extend(proto.functions)
    _Renaming().graph(proto.graph)
    renamed.graph.CopyFrom(proto.graph)
    content: bytes = renamed.SerializeToString(deterministic=True)
    return content


class _Renaming:
    """Gives values and symbolic dimensions new names, the same one wherever the old one is."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {"": ""}
        self._dims: dict[str, str] = {"": ""}

    def graph(self, graph: onnx.GraphProto) -> None:
        graph.name, graph.doc_string = FUNCTION, ""
        del graph.metadata_props[:], graph.quantization_annotation[:]
        self._infos(graph.input)
        for node in graph.node:
            self._node(node)
        self._infos(graph.output)
        known = [info for info in graph.value_info if info.name in self._values]
        self._infos(known)
        for tensor in graph.initializer:
            tensor.name, tensor.doc_string = self._value(tensor.name), ""
        for named in (graph.initializer, graph.value_info):
            named.sort(key=lambda entry: (len(entry.name), entry.name))

    def _node(self, node: onnx.NodeProto) -> None:
        node.name, node.doc_string = "", ""
        del node.metadata_props[:]
        for names in (node.input, node.output):
            names[:] = [self._value(name) for name in names]
        node.attribute.sort(key=lambda attribute: attribute.name)
        for attribute in node.attribute:
            attribute.doc_string = ""
            if attribute.HasField("t"):
                attribute.t.ClearField("name")
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                self.graph(graph)

    def _infos(self, infos: Iterable[onnx.ValueInfoProto]) -> None:
        for info in infos:
            info.name, info.doc_string = self._value(info.name), ""
            del info.metadata_props[:]
            for dim in info.type.tensor_type.shape.dim:
                dim.ClearField("denotation")
                if dim.HasField("dim_param"):
                    dim.dim_param = self._dims.setdefault(dim.dim_param, f"d{len(self._dims)}")

    def _value(self, name: str) -> str:
        return self._values.setdefault(name, f"v{len(self._values)}")
