"""Whether the nodes of a model come in an order in which they can run."""

from __future__ import annotations

import onnx_ir as ir


def sort_if_needed(model: ir.Model) -> None:
    """Sort the main graph and the functions, but leave an order that is good as it is."""
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        if not is_sorted(graph):
            graph.sort()


def is_sorted(graph: ir.Graph) -> bool:
    """True if every node of the graph comes after those that it reads from."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True
