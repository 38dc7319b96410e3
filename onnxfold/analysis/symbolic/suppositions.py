"""Conditions with one outcome after which the run fails: in every run they have the other one.

TorchScript writes ``squeeze(x, 1)`` as ``If(size of axis 1 == 1) Squeeze(x) else x``, whose result
has no known rank. What is computed of it may take one rank only, as an LSTM does. Both outcomes of
such a condition are supposed and followed through the graph. If a node then gets what it cannot
take, with one of them, it is the other one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic.fact import Fact, of_array
from onnxfold.graphs import subgraphs_of
from onnxfold.onnx_ir_private import nodes_of

if TYPE_CHECKING:
    from onnxfold.analysis.symbolic.propagation import SymbolicAnalysis

_Known = dict[ir.Value, Fact]


def decided(analysis: SymbolicAnalysis) -> Mapping[ir.Value, Fact]:
    """Conditions of Ifs that have one outcome in every run, with the fact that says so.

    Ifs of the main graph and of branches in it are looked at. What is known of a value is followed
    for one condition only.

    Args:
        analysis: Of the model; it has visited all nodes.
    """
    found: _Known = {}
    if any(map(_is_if, analysis.scopes.parents)):
        _decide(analysis, analysis.model.graph, found)
    return found


def _decide(analysis: SymbolicAnalysis, graph: ir.Graph, found: _Known) -> None:
    """Suppose the conditions of a graph's Ifs; all its nodes run if one does."""
    nodes = nodes_of(graph)
    followed: set[ir.Value] = set()
    needed: set[ir.Value] = set(graph.outputs)  # of what an output is made: runtimes run no other
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(analysis.needed(node))
    for place, node in enumerate(nodes):
        if not _is_if(node):
            continue
        for branch in subgraphs_of(node):
            _decide(analysis, branch, found)
        condition = node.inputs[0]
        if condition is None or condition in followed:
            continue
        producer, fact = condition.producer(), analysis.of(condition)
        if producer is None or producer.graph is not graph:
            continue  # where the condition is computed, this graph need not run
        if fact.known is None and fact.static_shape in ((), (1,)):
            shape = fact.static_shape or ()
            outcomes = [of_array(np.full(shape, k, bool), ir.DataType.BOOL) for k in (1, 0)]
            outcome = _only_outcome(analysis, nodes[place:], condition, outcomes, needed, followed)
            if outcome is not None:
                found[condition] = outcome


def _only_outcome(
    analysis: SymbolicAnalysis,
    nodes: Sequence[ir.Node],
    condition: ir.Value,
    outcomes: Sequence[Fact],
    needed: set[ir.Value],
    followed: set[ir.Value],
) -> Fact | None:
    """Return the outcome without which one of the needed nodes fails; None if neither
    is certain.
    """
    worlds = [{condition: outcome} for outcome in outcomes]
    followed.add(condition)
    for node in nodes:
        read = analysis.needed(node) if node in analysis.scopes.parents else node.inputs
        if worlds[0].keys().isdisjoint(read):
            continue
        one, other = (analysis.suppose(node, world) for world in worlds)
        if one is not None and other is not None:
            for value, *facts in zip(node.outputs, one, other, strict=False):
                if value not in followed and _outline(facts[0]) != _outline(facts[1]):
                    followed.add(value)
                    for world, fact in zip(worlds, facts, strict=True):
                        world[value] = analysis.table.shared(fact)
        elif one is not other and not needed.isdisjoint(node.outputs):
            return outcomes[one is None]
    return None


def _is_if(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "If"


def _outline(fact: Fact) -> tuple[object, ...]:
    """Return what is known of a value, whatever its symbols are."""
    sizes = None if fact.shape is None else [d if isinstance(d, int) else -1 for d in fact.shape]
    known = None if fact.known is None else fact.known.tobytes()
    return fact.dtype, sizes, known
