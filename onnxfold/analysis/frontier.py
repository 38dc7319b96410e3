"""The frontier: which constant values to store so that the fewest bytes are stored.

A constant region is a graph of ops over values. Some values are demanded by the rest of the
model. Each demanded value is either stored, or its op stays and then needs its own inputs. So on
every path from what the file holds to what is demanded some value is stored: a cut, and the
cheapest one is a minimum cut of a network in which every value is an edge with its stored bytes
as capacity. Inputs that several ops share, and weights that are needed as they are anyway, count
once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)

FORBIDDEN = math.inf
"""Cost of a value that cannot be stored, or must not be."""


@dataclass(frozen=True)
class RegionOp(Generic[V]):
    """One op of a constant region: the values it reads and makes, and what it costs to keep."""

    inputs: Sequence[V]
    outputs: Sequence[V]
    cost: float = 0


@dataclass
class Choice(Generic[V]):
    """What to store of one region."""

    stored: set[V] = field(default_factory=set)
    bytes_stored: float = 0
    bytes_if_all_folded: float = 0
    """What the demanded values take when every op is folded."""


def choose(
    ops: Sequence[RegionOp[V]],
    demanded: Iterable[V],
    cost: Mapping[V, float],
    allowed_growth: float = 0,
) -> Choice[V]:
    """The set of values to store; of equally cheap ones the one that folds the most ops.

    Args:
        ops: The region's ops in any order; a value that none of them makes is in the file.
        demanded: Values that something outside the region reads.
        cost: Stored bytes of each value; FORBIDDEN for one that cannot be stored (never so for
            a value that is in the file).
        allowed_growth: Bytes that may be stored above the minimum if more ops fold by it.
    """
    wanted = set(demanded)
    total = Choice[V]()
    regions = [_Network(part, wanted, cost) for part in _components(ops, wanted, cost)]
    choices = [region.minimum() for region in regions]
    for choice in sorted(choices, key=lambda c: c.bytes_if_all_folded - c.bytes_stored):
        extra = choice.bytes_if_all_folded - choice.bytes_stored
        if 0 < extra <= allowed_growth:
            allowed_growth -= extra
            choice.stored = choice.demanded
            choice.bytes_stored = choice.bytes_if_all_folded
        total.stored |= choice.stored
        total.bytes_stored += choice.bytes_stored
        total.bytes_if_all_folded += choice.bytes_if_all_folded
    return total


def _components(
    ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float]
) -> list[list[RegionOp[V]]]:
    """Split into parts that share no value that costs anything: they can be cut separately."""
    parent = list(range(len(ops)))

    def find(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    first: dict[V, int] = {}
    made = {v for op in ops for v in op.outputs}
    for k, op in enumerate(ops):
        for value in (*op.inputs, *op.outputs):
            if cost[value] or value in made:
                parent[find(k)] = find(first.setdefault(value, k))
    parts: dict[int, list[RegionOp[V]]] = {}
    for k, op in enumerate(ops):
        parts.setdefault(find(k), []).append(op)
    return list(parts.values())


@dataclass
class _PartChoice(Choice[V]):
    demanded: set[V] = field(default_factory=set)


class _Network(Generic[V]):
    """Dinic's maximum flow on one part (Dinic 1970); the cut is read off from the sink's side."""

    def __init__(self, ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float]) -> None:
        self._cost = cost
        self._index: dict[V, int] = {}
        self._heads: list[list[int]] = [[], []]  # vertex -> its edges; 0 source, 1 sink
        self._to: list[int] = []
        self._left: list[float] = []
        produced: set[V] = set()
        self._demanded: set[V] = set()
        for op in ops:
            vertex = self._vertex()
            for value in op.inputs:
                self._edge(self._value(value) + 1, vertex, math.inf)
            for value in op.outputs:
                produced.add(value)
                self._edge(vertex, self._value(value), math.inf)
            self._edge(0, vertex, op.cost)
        for value, vertex in self._index.items():
            if value not in produced:
                self._edge(0, vertex, math.inf)
            if value in wanted:
                self._demanded.add(value)
                self._edge(vertex + 1, 1, math.inf)

    def _vertex(self) -> int:
        self._heads.append([])
        return len(self._heads) - 1

    def _value(self, value: V) -> int:
        """The vertex before the value's own edge; the one after it is the next number."""
        vertex = self._index.get(value)
        if vertex is None:
            vertex = self._index[value] = self._vertex()
            self._vertex()
            self._edge(vertex, vertex + 1, self._cost[value])
        return vertex

    def _edge(self, start: int, end: int, capacity: float) -> None:
        self._heads[start].append(len(self._to))
        self._to.append(end)
        self._left.append(capacity)
        self._heads[end].append(len(self._to))
        self._to.append(start)
        self._left.append(0)

    def minimum(self) -> _PartChoice[V]:
        """The cheapest cut nearest to the sink."""
        everything = sum(self._cost[v] for v in self._demanded)
        self._flow()
        before_sink = self._reaching_sink()
        stored = {
            value
            for value, vertex in self._index.items()
            if vertex + 1 in before_sink and vertex not in before_sink
        }
        return _PartChoice(
            stored, sum(self._cost[v] for v in stored), everything, set(self._demanded)
        )

    def _flow(self) -> None:
        """Saturate the network. Every path starts at a value of finite cost, so it ends."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return
            position = [0] * len(self._heads)
            while self._augment(level, position):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self._heads)
        level[0] = 0
        queue = deque([0])
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                end = self._to[edge]
                if level[end] < 0 and self._left[edge] > 0:
                    level[end] = level[vertex] + 1
                    queue.append(end)
        return level

    def _augment(self, level: list[int], position: list[int]) -> float:
        """Push along one shortest path; 0 if there is none left at these levels."""
        path: list[int] = []
        vertex = 0
        while vertex != 1:
            edges = self._heads[vertex]
            while position[vertex] < len(edges):
                edge = edges[position[vertex]]
                if self._left[edge] > 0 and level[self._to[edge]] == level[vertex] + 1:
                    break
                position[vertex] += 1
            else:
                if not path:
                    return 0
                level[vertex] = -1
                vertex = self._to[path.pop() ^ 1]
                continue
            path.append(edges[position[vertex]])
            vertex = self._to[path[-1]]
        amount = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
        return amount

    def _reaching_sink(self) -> set[int]:
        reached = {1}
        queue = deque([1])
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                start = self._to[edge]
                if start not in reached and self._left[edge ^ 1] > 0:
                    reached.add(start)
                    queue.append(start)
        return reached
