"""Turn Constant nodes into initializers."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.editing import add_initializer, inherit, remove_nodes, replace
from onnxfold.graphs import tensor_of
from onnxfold.onnx_ir_private import nodes_of


class LiftConstants(ir.passes.InPlacePass):
    """Turn Constant nodes into initializers.

    A node stays if it makes a graph output, or is in a function, which has no initializers.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        functions = {function.graph for function in model.functions.values()}
        lifted = []
        for graph in facts_of(model).scopes.graphs():
            if graph in functions:
                continue
            for node in nodes_of(graph):
                if node.op_type != "Constant" or node.domain or node.outputs[0].is_graph_output():
                    continue
                value, (attribute,) = node.outputs[0], node.attributes.data.values()
                tensor = tensor_of(attribute, value.name)
                if tensor is None:
                    continue
                name, value.name = value.name, None  # the initializer has the tensor now
                tensor.name = name
                initializer = add_initializer(graph, tensor)
                inherit(value, initializer)
                replace(value, initializer)
                lifted.append(node)
        remove_nodes(lifted)
        return ir.passes.PassResult(model, modified=bool(lifted))
