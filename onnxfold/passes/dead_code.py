"""Removing what nothing uses: nodes, initializers at every level, functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.scopes import Scopes
from onnxfold.editing.removal import forget_strangers, is_used, remove_unused
from onnxfold.graphs import all_graphs
from onnxfold.passes.idle_ends import cut_idle_ends, has_idle_ends


class RemoveDeadCode(ir.passes.InPlacePass):
    """Remove nodes whose results nobody reads, unused initializers, and uncalled functions.

    What only the subgraphs of an unused node read goes, too. Optional outputs that nobody reads are
    left out. Inputs and outputs of the model stay whatever uses them.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        graphs = list(all_graphs(model))
        forget_strangers(graphs)
        nodes = [node for graph in graphs for node in graph]
        remove_unused(nodes)
        modified = any(node.graph is None for node in nodes)
        idle = [
            node
            for node in nodes
            if node.graph is not None
            and has_idle_ends(node)
            and node.op_identifier() not in model.functions
        ]
        if idle:
            scopes = Scopes(model)
            for node in idle:
                assert node.graph is not None
                opset = scopes.of(node.graph).opsets.get(node.domain, 1)
                modified = cut_idle_ends(node, opset) or modified
        for graph in all_graphs(model):
            unused = [
                name
                for name, value in graph.initializers.items()
                if not (is_used(value) or value.is_graph_input())
            ]
            for name in unused:
                del graph.initializers[name]
            modified = modified or bool(unused)
        if model.functions:
            modified = common.RemoveUnusedFunctionsPass()(model).modified or modified  # type: ignore[no-untyped-call]
        return ir.passes.PassResult(model, modified=modified)
