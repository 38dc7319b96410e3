"""What is new in a model says as little of itself as it can, where the file would grow by it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.graphs import all_graphs
from onnxfold.onnx_ir_private import nodes_of
from onnxfold.rewrite.apply import FROM_KEY, RULE_KEY


def names_of(model: ir.Model) -> set[str]:
    """The names that nodes and values of a model have."""
    names: set[str | None] = set()
    for graph in all_graphs(model):
        names.update(graph.initializers)
        names.update([value.name for value in graph.inputs])
        for node in nodes_of(graph):
            names.add(node.name)
            names.update([value.name for value in node.outputs])
    return {name for name in names if name}


def make_terse(model: ir.Model, old: set[str]) -> None:
    """New nodes lose their names and what is written of their origin, values get short names.

    Args:
        model: The model.
        old: The names that it came with; they stay.
    """
    for graph in all_graphs(model):
        for node in nodes_of(graph):
            node.metadata_props.pop(FROM_KEY, None)
            node.metadata_props.pop(RULE_KEY, None)
            if node.name not in old:
                node.name = None
    taken = old | names_of(model)
    short = (f"c{k}" for k in itertools.count() if f"c{k}" not in taken)
    for value in list(_values(model)):
        if value.name and value.name not in old:
            value.name = next(short)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in all_graphs(model):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in nodes_of(graph):
            yield from node.outputs
