"""Remove unused nodes, initializers of all graphs, and functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.facts import facts_of
from onnxfold.editing import remove_unused
from onnxfold.onnx_ir_private import is_unused, is_used, nodes_in


class RemoveDeadCode(ir.passes.InPlacePass):
    """Remove nodes whose results are unused, unused initializers, and uncalled functions.

    Nodes that only subgraphs of an unused node use are removed, too. Inputs and outputs of the
    model stay. So do all outputs of a used node, as the results of a kernel may depend on which of
    them are used.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        graphs = facts_of(model).scopes.graphs()
        before = sum(map(len, graphs))
        remove_unused([node for graph in graphs for node in nodes_in(graph) if is_unused(node)])
        modified = sum(map(len, graphs)) < before
        for graph in graphs:
            unused = [
                name
                for name, value in graph.initializers.data.items()
                if not (is_used(value) or value.is_graph_input())
            ]
            for name in unused:
                del graph.initializers[name]
            modified = modified or bool(unused)
        if model.functions:
            modified = common.RemoveUnusedFunctionsPass()(model).modified or modified  # type: ignore[no-untyped-call]
        return ir.passes.PassResult(model, modified=modified)
