"""Conditions with one outcome after which the run fails: in every run they have the other one.

TorchScript writes ``squeeze(x, 1)`` as ``If(size of axis 1 == 1) Squeeze(x) else x``, whose result
has no known rank. What is computed of it may take one rank only, as an LSTM does. Both outcomes of
such a condition are supposed and followed through the graph. If a node then gets what it cannot
take, with one of them, it is the other one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic.fact import Fact, of_array
from onnxfold.graphs import subgraphs_of
from onnxfold.onnx_ir_private import nodes_of

if TYPE_CHECKING:
    from onnxfold.analysis.symbolic.propagation import SymbolicAnalysis

_MOST_CONDITIONS = 4  # that are supposed for one node

_Known = dict[ir.Value, Fact]


def decided(analysis: SymbolicAnalysis) -> Mapping[ir.Value, Fact]:
    """Conditions of Ifs that have one outcome in every run, with the fact that says so.

    Ifs of the main graph and of branches in it are looked at. Each node is visited once for each
    outcome of one condition, seldom more.

    Args:
        analysis: Of the model; it has visited all nodes.
    """
    found: _Known = {}
    if any(map(_is_if, analysis.scopes.parents)):
        _Graph(analysis, analysis.model.graph, found).follow()
    return found


class _Graph:
    """A graph all nodes of which run if one does, and what is supposed in it."""

    def __init__(self, analysis: SymbolicAnalysis, graph: ir.Graph, found: _Known) -> None:
        self._analysis = analysis
        self._graph = graph
        self._found = found
        self._conditions: dict[ir.Value, ir.Value] = {}
        """The condition that more is known of a value with."""
        self._supposed: dict[ir.Value, tuple[_Known, _Known]] = {}
        """What is known of values if a condition holds, and if it does not."""
        self._needed: set[ir.Value] = set()

    def follow(self) -> None:
        """Look at each node in order."""
        parents, conditions = self._analysis.scopes.parents, self._conditions
        for node in nodes_of(self._graph):
            if node not in parents:
                if conditions and not conditions.keys().isdisjoint(node.inputs):
                    self._visit(node)
            elif _is_if(node):
                for branch in subgraphs_of(node):
                    _Graph(self._analysis, branch, self._found).follow()
                self._visit(node)
                self._suppose(node)

    def _suppose(self, node: ir.Node) -> None:
        """Suppose both outcomes of an If's condition, if something follows from them."""
        condition = node.inputs[0]
        if condition is None or condition in self._conditions or condition in self._supposed:
            return
        producer = condition.producer()
        if producer is None or producer.graph is not self._graph:
            return  # where the condition is computed, this graph need not run
        of = self._analysis.of
        shape = of(condition).static_shape
        if of(condition).known is None and shape is not None and math.prod(shape) == 1:
            self._supposed[condition] = ({}, {})
            self._note([condition], condition, [[_outcome(shape, is_true)] for is_true in (1, 0)])
            branches = [node.attributes[f"{name}_branch"].as_graph() for name in ("then", "else")]
            results = [[of(value) for value in branch.outputs] for branch in branches]
            self._note(node.outputs, condition, results)

    def _visit(self, node: ir.Node) -> None:
        """Follow what is supposed of what a node reads."""
        read = self._analysis.needed(node)
        conditions = dict.fromkeys(self._conditions[v] for v in read if v in self._conditions)
        for condition in list(conditions)[:_MOST_CONDITIONS]:
            if condition in self._found:
                continue
            worlds = self._supposed[condition]
            results = [self._analysis.suppose(node, world) for world in worlds]
            if None not in results:
                self._note(node.outputs, condition, [each or () for each in results])
            elif any(each is not None for each in results) and self._is_needed(node):
                self._found[condition] = worlds[results.index(None) == 0][condition]

    def _note(
        self,
        values: Sequence[ir.Value],
        condition: ir.Value,
        results: Sequence[Sequence[Fact]],
    ) -> None:
        """Remember what is known of values with each outcome, where that differs."""
        for value, *facts in zip(values, *results, strict=False):
            if value not in self._conditions and _outline(facts[0]) != _outline(facts[1]):
                self._conditions[value] = condition
                for known, fact in zip(self._supposed[condition], facts, strict=True):
                    known[value] = self._analysis.table.shared(fact)

    def _is_needed(self, node: ir.Node) -> bool:
        """Whether an output of the graph is made of what the node makes: runtimes run no other."""
        if not self._needed:
            self._needed.update(self._graph.outputs)
            for each in reversed(nodes_of(self._graph)):
                if not self._needed.isdisjoint(each.outputs):
                    self._needed.update(self._analysis.needed(each))
        return not self._needed.isdisjoint(node.outputs)


def _outcome(shape: tuple[int, ...], is_true: int) -> Fact:
    return of_array(np.full(shape, is_true, bool), ir.DataType.BOOL)


def _is_if(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "If"


def _outline(fact: Fact) -> tuple[object, ...]:
    """What is known of a value, whatever its symbols are."""
    sizes = None if fact.shape is None else [d if isinstance(d, int) else -1 for d in fact.shape]
    known = None if fact.known is None else fact.known.tobytes()
    return fact.dtype, sizes, known
