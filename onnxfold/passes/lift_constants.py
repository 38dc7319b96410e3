"""Turn Constant nodes into initializers."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.editing import remove_nodes
from onnxfold.graphs import tensor_of
from onnxfold.onnx_ir_private import nodes_of
from onnxfold.passes.stored import store


class LiftConstants(ir.passes.InPlacePass):
    """Turn Constant nodes into initializers.

    A node stays if it makes a graph output, or is in a function, which has no initializers.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        facts, lifted = facts_of(model), []
        for graph in facts.scopes.graphs():
            scope = facts.scopes.of(graph)
            for node in nodes_of(graph) if scope.parent or not scope.in_function else ():
                if node.op_type != "Constant" or node.domain or node.outputs[0].is_graph_output():
                    continue
                value, (attribute,) = node.outputs[0], node.attributes.data.values()
                tensor = tensor_of(attribute, value.name)
                if tensor is not None:
                    store((value,), tensor, facts)
                    lifted.append(node)
        remove_nodes(lifted)
        return ir.passes.PassResult(model, modified=bool(lifted))
