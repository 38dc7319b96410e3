"""The scope of each graph.

A scope contains the opsets, the root graph and the parent node of a graph, and whether the graph is
in a function.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.ir import storage
from onnxfold.ir.graphs import subgraphs_of
from onnxfold.ir.onnx_ir_private import nodes_with_subgraphs
from onnxfold.support.errors import ModelError

# The domains of ops whose subgraphs may read outer values. Subgraphs of ops of other domains, such
# as ai.onnx.preview::FlexAttention, may not.
_CAPTURING_DOMAINS = ("", "ai.onnx", "com.microsoft")


@dataclass(frozen=True, slots=True)
class Scope:
    """Properties that all nodes of a graph have in common."""

    graph: ir.Graph
    opsets: Mapping[str, int]
    """The version of each domain."""
    root: ir.Graph
    """The graph of the model or of the function that contains this graph, or this graph itself."""
    parent: ir.Node | None
    """The node that has this graph as a subgraph; None for a root graph."""
    in_function: bool


class Scopes:
    """The scopes of all graphs of a model. Graphs added later are unknown until `refresh`."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._by_graph: dict[ir.Graph, Scope] = {}
        self._paths: dict[ir.Graph | None, list[ir.Graph]] = {}
        self.parents: set[ir.Node] = set()
        """The nodes with subgraphs."""
        self.refresh()

    def refresh(self) -> None:
        """Update the scopes to the current graphs of the model.

        Passes move, clone and remove subgraphs, but they do not create new ones. So a model without
        subgraphs is searched again only if the number of functions changed.

        Raises:
            ModelError: A branch of an If has inputs.
        """
        roots = 1 + len(self.model.functions)
        if len(self._by_graph) == roots and not self.parents:
            return
        self._by_graph.clear()
        self._paths.clear()
        self.parents.clear()
        # the imports are shared instead of copied, because a rewrite may import another domain
        self._add_root(self.model.graph, self.model.graph.opset_imports, in_function=False)
        for function in self.model.functions.values():
            self._add_root(function.graph, function.opset_imports, in_function=True)

    def _add_root(
        self, root: ir.Graph, opsets: MutableMapping[str, int], *, in_function: bool
    ) -> None:
        if "" not in opsets and "ai.onnx" in opsets:  # both names denote the same domain
            opsets = ChainMap({"": opsets["ai.onnx"]}, opsets)
        elif "" not in opsets and opsets and not in_function:
            opsets = ChainMap({"": storage.onnx_opset(opsets)}, opsets)
        pending: list[tuple[ir.Graph, ir.Node | None]] = [(root, None)]
        while pending:
            graph, parent = pending.pop()
            self._by_graph[graph] = Scope(graph, opsets, root, parent, in_function)
            if parent is not None:
                self.parents.add(parent)
                if parent.op_type == "If" and not parent.domain and graph.inputs:
                    reason = "the branches of an If have no inputs: they read outer values by name"
                    raise ModelError(reason, node=parent.name or parent.outputs[0].name)
            for node in nodes_with_subgraphs(graph):
                pending.extend((inner, node) for inner in subgraphs_of(node))

    def of(self, graph: ir.Graph) -> Scope:
        """Return the scope of a graph of the model."""
        return self._by_graph[graph]

    def find(self, graph: ir.Graph | None) -> Scope | None:
        """Return the scope of a graph, or None if the graph is not in the model."""
        return None if graph is None else self._by_graph.get(graph)

    def path(self, graph: ir.Graph | None) -> list[ir.Graph]:
        """Return a graph and the outer graphs whose values it can read, innermost first.

        The list is empty for a graph outside the model.
        """
        if graph not in self._paths:
            scope = self.find(graph)
            parent = None if scope is None else scope.parent
            outer = parent.graph if parent and parent.domain in _CAPTURING_DOMAINS else None
            self._paths[graph] = [] if scope is None else [scope.graph, *self.path(outer)]
        return self._paths[graph]

    def forget_paths(self) -> None:
        """Clear the cached paths.

        The caller must do this after a node with subgraphs was moved to another graph.
        """
        self._paths.clear()

    def graphs(self) -> list[ir.Graph]:
        """Return all graphs, outer ones before inner ones."""
        return list(self._by_graph)
