"""Replace calls of the model's functions by their nodes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.editing import Names
from onnxfold.graphs import all_graphs


class InlineFunctions(ir.passes.InPlacePass):
    """Inline functions with the opsets of the model; calls of others stay."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inline the functions of a model."""
        names, opsets = Names(all_graphs(model)), model.opset_imports
        for node in (node for graph in all_graphs(model) for node in graph):
            for value in node.outputs if node.op_identifier() in model.functions else ():
                value.name = value.name or names.fresh("unread")  # the function itself may read it
        others = {
            name
            for name, function in model.functions.items()
            if any(opsets.get(domain, v) != v for domain, v in function.opset_imports.items())
        }
        return common.InlinePass(lambda function: function.identifier() not in others)(model)
