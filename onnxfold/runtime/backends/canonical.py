"""One text for all models that compute the same in the same way, whatever their values are called.

So what is compiled for one layer of a model is found again for the next one.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold import storage
from onnxfold.graphs import all_graphs
from onnxfold.runtime.backends.base import FUNCTION


def canonical(model: ir.Model) -> bytes:
    """Serialize a model without what is not computed with: names, texts, metadata.

    Values and symbolic dimensions are called by the order in which they appear.

    Args:
        model: The model; not changed.
    """
    clone = model.clone()
    values: dict[ir.Value, None] = {}
    for graph in all_graphs(clone):
        graph.name, graph.doc_string = FUNCTION, None
        graph.metadata_props.clear()
        values |= dict.fromkeys(graph.inputs)
        for node in graph:
            node.name = node.doc_string = None
            node.metadata_props.clear()
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
