"""The graphs of a model: the main one, those of functions, and those in nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir


def subgraphs_of(node: ir.Node) -> Sequence[ir.Graph]:
    """The graphs among a node's attributes."""
    return _graphs_in(node.attributes.values()) if node.attributes else ()


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, the functions' graphs, and every subgraph in them, outer ones first.

    Graphs that are the defaults of a function's attributes are among them.
    """
    stack: list[ir.Graph] = [model.graph]
    for function in model.functions.values():
        stack.append(function.graph)
        stack.extend(_graphs_in(function.attributes.values()))
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph:
            stack.extend(subgraphs_of(node))


def _graphs_in(attributes: Iterable[ir.Attr]) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for attribute in attributes:
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            found.extend(attribute.as_graphs())
    return found
