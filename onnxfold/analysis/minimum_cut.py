"""The minimum cut of a constant region: a network in which every value is an edge.

An edge's capacity is what its value costs to store; an op that stays adds an edge of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxfold.analysis.preflow import SINK, SOURCE, Preflow

V = TypeVar("V", bound=Hashable)


@dataclass(eq=False, slots=True)
class RegionOp(Generic[V]):
    """One op of a constant region: the values it reads and makes, and what it costs to keep."""

    inputs: Sequence[V]
    outputs: Sequence[V]
    cost: float = 0


def minimum_cut(
    ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float], price: float = 0
) -> set[V]:
    """Return the cheapest values to store; of equally cheap sets the one nearest to what is wanted.

    Args:
        ops: The region's ops in any order.
        wanted: Values that something outside the region reads; others than the region's are
            passed over.
        cost: What each value costs to store; infinite for one that cannot be.
        price: What it costs to keep an op, besides the op's own cost. A higher price never
            gives a set that folds less.
    """
    return _ValueNetwork(ops, wanted, cost, price).minimum()


class Network:
    """A network of which the cheapest cut is read off from the sink's side."""

    def __init__(self) -> None:
        self._heads: list[list[int]] = [[], []]  # vertex -> its edges
        self._to: list[int] = []
        self._left: list[float] = []

    def vertex(self) -> int:
        """Return a new vertex, besides SOURCE and SINK."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        """A new edge; it is cut where only its end is on the sink's side."""
        self._heads[start].append(len(self._to))
        self._to.append(end)
        self._left.append(capacity)
        self._heads[end].append(len(self._to))
        self._to.append(start)
        self._left.append(0)

    def before_sink(self) -> set[int]:
        """Return the vertices on the sink's side of the cheapest cut, as few as there can be."""
        Preflow(self._heads, self._to, self._left).run()
        reached = {SINK}
        queue = deque([SINK])
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                start = self._to[edge]
                if start not in reached and self._left[edge ^ 1] > 0:
                    reached.add(start)
                    queue.append(start)
        return reached


class _ValueNetwork(Network, Generic[V]):
    """The network of one part."""

    def __init__(
        self, ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float], price: float
    ) -> None:
        super().__init__()
        self._cost = cost
        self._index: dict[V, int] = {}
        produced: set[V] = set()
        for op in ops:
            vertex = self.vertex()
            for value in op.inputs:
                self.edge(self._value(value) + 1, vertex, math.inf)
            for value in op.outputs:
                produced.add(value)
                self.edge(vertex, self._value(value), math.inf)
            self.edge(SOURCE, vertex, op.cost + price)
        for value, vertex in self._index.items():
            if value not in produced:
                self.edge(SOURCE, vertex, cost[value])
            if value in wanted:
                self.edge(vertex + 1, SINK, math.inf)

    def _value(self, value: V) -> int:
        """Return the vertex before the value's own edge; the one after it is the next number."""
        vertex = self._index.get(value)
        if vertex is None:
            vertex = self._index[value] = self.vertex()
            self.vertex()
            self.edge(vertex, vertex + 1, self._cost[value])
        return vertex

    def minimum(self) -> set[V]:
        """Return the cheapest cut nearest to the sink."""
        before_sink = self.before_sink()
        return {
            value
            for value, vertex in self._index.items()
            if vertex + 1 in before_sink and vertex not in before_sink
        }
