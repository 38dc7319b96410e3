"""Whether the nodes of a model come in an order in which they can run."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graphs import subgraphs_of


def sort_if_needed(model: ir.Model) -> None:
    """Sort the main graph and the functions, but leave an order that is good as it is."""
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        if not is_sorted(graph):
            graph.sort()


def is_sorted(graph: ir.Graph) -> bool:
    """True if every node of the graph, and of those in it, comes after what it reads from."""
    return _is_sorted(graph, set())


def _is_sorted(graph: ir.Graph, seen: set[ir.Node]) -> bool:
    for node in graph:
        for value in node._inputs:
            producer = value._producer if value is not None else None
            if producer is not None and producer._graph is not None and producer not in seen:
                return False
        if node.attributes and not all(_is_sorted(inner, seen) for inner in subgraphs_of(node)):
            return False
        seen.add(node)
    return True
