"""Sharing of equal shape vectors, and rebuilding of vectors that take more nodes than necessary."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxfold.analysis.constness import ConstnessAnalysis
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.ir.graphs import subgraphs_of
from onnxfold.ir.onnx_ir_private import is_used, nodes_of, uses
from onnxfold.ir.symbolic import Fact
from onnxfold.passes.shapes.edit import Edit
from onnxfold.passes.shapes.vectors import Segment, ShapeVectors


class Sharing:
    """The replacement of shape vectors by equal vectors that were computed before.

    A shape vector that other nodes than shape arithmetic read may be rebuilt from constants,
    existing vectors and shapes of tensors. This must add fewer nodes than it removes.
    """

    def __init__(
        self, analysis: SymbolicAnalysis, constness: ConstnessAnalysis, edit: Edit
    ) -> None:
        self._analysis = analysis
        self._edit = edit
        self._vectors = ShapeVectors(analysis, constness, edit)

    def graph(self, graph: ir.Graph) -> None:
        """Visit a graph and its subgraphs. Subgraphs can read earlier values of outer graphs."""
        self._vectors.enter(graph)
        for node in nodes_of(graph):
            if node.graph is not graph:
                continue
            if node in self._analysis.scopes.parents:
                for inner in list(subgraphs_of(node)):
                    self.graph(inner)
            for value in node.outputs:
                fact = self._analysis.of(value)
                if not is_used(value):
                    continue
                if fact.items is not None and fact.is_symbolic and not self._share(value, fact):
                    self._rebuild(value, fact, node)
                if is_used(value):
                    self._vectors.record(value, fact)
        self._vectors.leave()

    def _share(self, value: ir.Value, fact: Fact) -> bool:
        first = self._vectors.find(fact, value)
        if first is None or first is value or value.is_graph_output():
            return False
        return self._edit.replace(value, first)

    def _rebuild(self, value: ir.Value, fact: Fact, node: ir.Node) -> None:
        items = fact.items
        if items is None or fact.dtype != ir.DataType.INT64:
            return
        if value.is_graph_output() or items.ndim != 1:
            return
        outputs = [output for use in uses(value) for output in use.node.outputs]
        if all(self._analysis.of(output).is_symbolic for output in outputs):
            return
        if len(unused_without([node], ())) < 2:  # the new vector takes at least one node
            return
        best: list[Segment] = []
        min_change = 0
        for reuse in (True, False):
            parts = self._vectors.segments(list(items), reuse, value)
            required = values_of_segments(parts)
            change = self._vectors.cost(parts, node) - len(unused_without([node], required))
            if parts and change < min_change:
                best = parts
                min_change = change
        if best:
            self._edit.replace(value, self._vectors.assemble(best, value, node))


def values_of_segments(segments: Iterable[Segment]) -> list[ir.Value]:
    """Return the existing values that segments of a vector require."""
    return [v for part in segments for v in (part.value, part.source) if v is not None]


def unused_without(nodes: Iterable[ir.Node], required: Collection[ir.Value]) -> set[ir.Node]:
    """Return ``nodes`` and all nodes that become unused without them.

    Producers of ``required`` and Constant nodes are not included unless they are in ``nodes``.
    """
    removed = set(nodes)
    kept = {value.producer() for value in required}
    pending = list(removed)
    while pending:
        for value in pending.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is None or producer in removed or producer in kept:
                continue
            if producer.op_type != "Constant" and all(
                not v.is_graph_output() and all(use.node in removed for use in uses(v))
                for v in producer.outputs
            ):
                removed.add(producer)
                pending.append(producer)
    return removed
