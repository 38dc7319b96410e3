"""Removing what nothing uses: nodes, initializers at every level, functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.facts import facts_of
from onnxfold.editing import remove_unused
from onnxfold.onnx_ir_private import is_used, nodes_of


class RemoveDeadCode(ir.passes.InPlacePass):
    """Remove nodes whose results nobody reads, unused initializers, and uncalled functions.

    What only the subgraphs of an unused node read goes, too. Inputs and outputs of the model stay
    whatever uses them. So do the outputs of a node that is used: what a kernel does may depend on
    which of them it is asked for.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        graphs = facts_of(model).scopes.graphs()
        before = sum(map(len, graphs))
        remove_unused([node for graph in graphs for node in nodes_of(graph)])
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
