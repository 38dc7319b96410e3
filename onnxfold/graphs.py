"""The graphs of a model: the main one, those of functions, and those in nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from onnxfold.onnx_ir_private import nodes_of

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def subgraphs_of(node: ir.Node) -> Sequence[ir.Graph]:
    """The graphs among a node's attributes."""
    # asked of every node by every pass: the dict below the attributes is three times as fast
    attributes = node.attributes.data
    for attribute in attributes.values():
        if attribute.type is _GRAPH or attribute.type is _GRAPHS:
            return _graphs_in(attributes.values())
    return ()


def has_references(node: ir.Node) -> bool:
    """Whether the caller of the function that a node is in supplies one of its attributes."""
    for attribute in node.attributes.data.values():  # noqa: SIM110, a generator takes longer
        if attribute.is_ref():
            return True
    return False


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
        for node in nodes_of(graph):
            stack.extend(subgraphs_of(node))


def _graphs_in(attributes: Iterable[ir.Attr]) -> list[ir.Graph]:
    found: list[ir.Graph] = []
    for attribute in attributes:
        if attribute.type is _GRAPH and not attribute.is_ref():
            found.append(attribute.as_graph())
        elif attribute.type is _GRAPHS and not attribute.is_ref():
            found.extend(attribute.as_graphs())
    return found
