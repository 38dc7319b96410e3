"""Merge nodes that compute the same op on the same inputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from onnxfold.analysis.content import content_of_node
from onnxfold.analysis.facts import facts_of
from onnxfold.editing import can_take_name, inherit, remove_nodes, replace, take_over
from onnxfold.graphs import root_graphs, subgraphs_of
from onnxfold.onnx_ir_private import nodes_of, set_input, uses
from onnxfold.options import Options

_Seen = dict[Hashable, ir.Node]
"""Nodes by op and inputs; if several have the same, each by its full content."""


class CommonSubexpressions(ir.passes.InPlacePass):
    """Merge nodes with the same op, inputs, attributes and outputs.

    A node of a subgraph may be replaced by an earlier one of an outer graph. Nodes are not merged
    if their results may differ (random ops, ops that ONNX does not define, functions with such
    ops), if they have subgraphs, or if their attributes differ in one bit. Of two nodes that make
    graph outputs, which keep their names, other nodes read the first.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._keeps = (options or Options()).keeps

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        facts = facts_of(model)
        self._scopes = facts.scopes
        self._determinism = facts.determinism
        self._gone: list[ir.Node] = []
        self._modified = False
        for graph in root_graphs(model):
            self._visit(graph, ())
        remove_nodes(self._gone)
        return ir.passes.PassResult(model, modified=self._modified or bool(self._gone))

    def _visit(self, graph: ir.Graph, outer: Sequence[_Seen]) -> None:
        """Visit a graph that can read nodes in ``outer``; subgraphs can read earlier ones, too."""
        own: _Seen = {}
        levels = (own, *outer)
        for node in nodes_of(graph):
            if node in self._scopes.parents:
                for subgraph in subgraphs_of(node):
                    self._visit(subgraph, levels)
                continue
            # a node without inputs is a constant: searching outer graphs costs more than it saves
            twin = _twin(node, levels if node.inputs else (own,))
            if twin is None or any(map(self._keeps, node.outputs)):
                continue
            if self._determinism.reason_not_to_fold(node, self._scopes.of(graph).opsets) is None:
                self._merge(node, twin)

    def _merge(self, node: ir.Node, twin: ir.Node) -> None:
        """Replace a node by its twin; it stays if one of its outputs must."""
        pairs = list(zip(node.outputs, twin.outputs, strict=True))
        stays = any(
            old.is_graph_output() and not can_take_name(old, new, self._keeps) for old, new in pairs
        )
        for old, new in pairs:
            if stays:
                for user, index in list(uses(old)):
                    set_input(user, index, new)
                    self._modified = True
            elif old.is_graph_output():
                take_over(old, new, declared=True)
            else:
                inherit(old, new)
                replace(old, new)
        if not stays:
            self._gone.append(node)


def _twin(node: ir.Node, levels: Sequence[_Seen]) -> ir.Node | None:
    """Return an earlier node that computes the same values; record the node if it is the first."""
    # few nodes have the same op and inputs: attributes are compared only for these
    rough = (node.op_type, *_operands(node))
    key = None
    for seen in levels:
        first = seen.get(rough)
        if first is not None:
            key = key or content_of_node(node, _operands(node))
            seen.setdefault(content_of_node(first, _operands(first)), first)
            if key is None or key in seen:
                return None if key is None else seen[key]
    own = levels[0]
    own[key if rough in own else rough] = node
    return None


def _operands(node: ir.Node) -> list[int]:
    """Return what tells the inputs of a node from others, without omitted ones at the end."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return [*map(id, inputs)]
