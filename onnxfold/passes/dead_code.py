"""Removing what nothing uses: nodes, initializers at every level, functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.constants import all_graphs


class RemoveDeadCode(ir.passes.InPlacePass):
    """Remove nodes whose results nobody reads, unused initializers, and uncalled functions.

    onnx-ir's passes do the nodes, the main graph's initializers and the functions; they leave the
    initializers of subgraphs. Inputs and outputs of the model stay whatever uses them.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        modified = common.RemoveUnusedNodesPass()(model).modified
        for graph in all_graphs(model):
            unused = [
                name
                for name, value in graph.initializers.items()
                if not (value.uses() or value.is_graph_output() or value.is_graph_input())
            ]
            for name in unused:
                del graph.initializers[name]
            modified = modified or bool(unused)
        if model.functions:
            modified = common.RemoveUnusedFunctionsPass()(model).modified or modified  # type: ignore[no-untyped-call]
        return ir.passes.PassResult(model, modified=modified)
