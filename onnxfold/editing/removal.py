"""Taking nodes out of their graphs, and with a node all that its subgraphs read.

onnx-ir keeps the users of every value. A node that is taken out is no user any more, and the nodes
of its subgraphs must be none either: they are in no model, but would be found as users of outer
values. So a node with subgraphs leaves nothing but empty graphs behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from onnxfold.graphs import all_graphs, subgraphs_of
from onnxfold.onnx_ir_private import nodes_of, read_nothing, set_input, uses


def is_used(value: ir.Value) -> bool:
    """True if somebody reads the value. ``uses()`` would copy the list of all who do."""
    return bool(uses(value)) or value.is_graph_output()


def is_unused(node: ir.Node) -> bool:
    """True if nobody reads a result of the node."""
    for value in node.outputs:  # noqa: SIM110, a generator takes longer than what it would ask
        if uses(value) or value.is_graph_output():
            return False
    return True


def remove_node(node: ir.Node) -> list[ir.Value]:
    """Take a node out of its graph; nobody may use its results.

    Returns:
        What it read, and what its subgraphs read: values that have lost a user. One that was read
        several times is there as often.
    """
    graph = node.graph
    assert graph is not None
    operands = _detach(node)
    graph.remove(node, safe=True)
    return operands


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Take nodes out of their graphs; none of them may have users other than themselves."""
    by_graph: dict[ir.Graph, list[ir.Node]] = {}
    nodes = list(nodes)
    for node in nodes:  # a node of a subgraph may use one of an outer graph that goes as well
        read_nothing(node)
    for node in nodes:
        if node.attributes:
            for subgraph in subgraphs_of(node):
                _empty(subgraph)
        if node.graph is not None:
            by_graph.setdefault(node.graph, []).append(node)
    for graph, group in by_graph.items():
        graph.remove([node for node in group if node.graph is graph], safe=True)


def remove_unused(
    nodes: Iterable[ir.Node | None], keeps: Callable[[str | None], bool] | None = None
) -> list[ir.Value]:
    """Take out those of the nodes that nobody reads, and then those before them.

    Args:
        nodes: Where to begin; None and nodes of no graph are passed over.
        keeps: Says for a value's name whether the node that makes it must stay.

    Returns:
        The values that have lost a user, each once, those of nodes that are gone included.
    """
    touched: dict[ir.Value, None] = {}
    removed: dict[ir.Graph, dict[ir.Node, None]] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node is None or node.graph is None or not is_unused(node):
            continue
        group = removed.setdefault(node.graph, {})
        if node in group:
            continue
        if keeps is not None and any(keeps(value.name) for value in node.outputs):
            continue
        group[node] = None
        for value in _detach(node):
            touched[value] = None
            if not uses(value):
                pending.append(value.producer())
    # At once: each call of onnx-ir's looks at all outputs of the graph. Some may have gone with the
    # node whose subgraph they were in. That nobody uses them has been seen to.
    for graph, group in removed.items():
        graph.remove([node for node in group if node.graph is graph])
    return list(touched)


def forget_strangers(model: ir.Model) -> None:
    """Make users of values only those nodes that are in the model.

    A node in the branch of an If that somebody else took out of the model is still a user of what
    it reads, and would be one for ever.
    """
    known = set(all_graphs(model))
    for graph in known:
        values = [*graph.inputs, *graph.initializers.values()]
        values.extend(value for node in graph for value in node.outputs)
        for value in values:
            for user, position in [use for use in uses(value) if use.node.graph not in known]:
                set_input(user, position, None)


def _detach(node: ir.Node) -> list[ir.Value]:
    """Have a node and what is in its subgraphs read nothing; what they read until now."""
    operands = read_nothing(node)
    for subgraph in subgraphs_of(node):
        operands.extend(_empty(subgraph))
    return operands


def _empty(graph: ir.Graph) -> list[ir.Value]:
    """Take everything out of a subgraph that goes; what it read, of outer graphs and of itself."""
    operands: list[ir.Value] = []
    graph.outputs.clear()
    nodes = nodes_of(graph)
    for node in nodes:
        operands.extend(_detach(node))
    graph.remove(nodes, safe=True)
    return operands
