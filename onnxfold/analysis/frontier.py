"""The frontier: the constant values that are stored so that the model is smallest.

A constant region is a graph of ops over values. The rest of the model demands some of the values.
Each of these is either stored, or its op stays and its inputs are needed in turn. So every path
from the file's values to the demanded ones has a stored value: a cut. The smallest one is a minimum
cut of a network in which every value is an edge with its stored bytes as capacity. Inputs shared by
several ops, and weights that are needed anyway, count once.

With a price on every op that stays, the minimum cut folds more ops and stores more bytes. If bytes
above the minimum are allowed, the highest affordable price is searched (a Lagrange multiplier).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V", bound=Hashable)

FORBIDDEN = math.inf
"""Cost of a value that cannot or must not be stored."""

_HIGHEST = 1 << 62  # more than the bytes of any region
_HALVES = 9  # number of prices that are tried, each half of the next one
_SOURCE = 0
_SINK = 1


@dataclass(eq=False, slots=True)
class RegionOp(Generic[V]):
    """An op of a constant region: its inputs and outputs, and the cost if it stays."""

    inputs: Sequence[V]
    outputs: Sequence[V]
    cost: float = 0


class Growth(NamedTuple):
    """Bytes that may be stored above the minimum in order to fold more ops."""

    allowed: float
    per_op: float = math.inf
    """Limit of these bytes for each additional op that folds."""


@dataclass
class Choice(Generic[V]):
    """The values of a region to store."""

    stored: set[V] = field(default_factory=set)
    spent: float = 0
    """Bytes stored above the minimum."""


def choose(
    ops: Sequence[RegionOp[V]],
    demanded: Iterable[V],
    cost: Mapping[V, float],
    growth: Iterable[Growth] = (),
) -> Choice[V]:
    """Return the values to store; of equally small sets the one that folds the most ops.

    The ops of the region are in any order; other values than their outputs are in the file. The
    demanded values are read outside of the region. The cost of a value is its stored bytes, or
    FORBIDDEN if it cannot be stored. The allowances above the minimum apply one after the other.
    """
    wanted = set(demanded)
    total = Choice[V]()
    parts = []
    for found in _components(ops, cost):
        touched = {v for op in found for v in (*op.inputs, *op.outputs)}
        parts.append(_Part(found, touched & wanted, cost))
    for allowed, per_op in growth if parts else ():
        left = allowed
        price = int(min(allowed, per_op, _HIGHEST))  # sums of whole bytes are exact
        offers = {part: part.bytes_per_op(price) for part in parts if part.staying and price}
        for part in sorted(offers, key=offers.__getitem__):
            if offers[part] < math.inf:
                left -= part.spend(left, price)
        total.spent += allowed - left
    for part in parts:
        total.stored |= part.stored
    return total


class _Part(Generic[V]):
    """Ops that share no values with others, and their stored values."""

    def __init__(self, ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float]) -> None:
        self._ops = ops
        self._wanted = wanted
        self._cost = cost
        self._cuts: dict[int, set[V]] = {}
        self._maker = {v: k for k, op in enumerate(ops) for v in op.outputs}
        self.stored = self._cut(0)
        _, self._bytes, self.staying = self._weigh(self.stored)

    def bytes_per_op(self, price: int) -> float:
        """Return the bytes that the cut at a price adds, for each additional op that it folds."""
        _, nbytes, staying = self._weigh(self._cut(price))
        gain = self.staying - staying
        return (nbytes - self._bytes) / gain if gain > 0 else math.inf

    def spend(self, allowed: float, most: int) -> float:
        """Use the cut at the highest affordable price; return the bytes that it adds."""

        def more(price: int) -> float:
            return self._weigh(self._cut(price))[1] - self._bytes

        prices = sorted({0, *(most >> k for k in range(_HALVES))})
        place = len(prices) if more(most) <= allowed else bisect.bisect(prices, allowed, key=more)
        stored, nbytes, staying = self._weigh(self._cut(prices[place - 1]))
        if staying >= self.staying:
            return 0
        spent = nbytes - self._bytes
        self.stored = stored
        self._bytes = nbytes
        self.staying = staying
        return spent

    def _cut(self, price: int) -> set[V]:
        """Return the minimum cut with a price on each op that stays."""
        if price not in self._cuts:
            if len(self._ops) > 1:
                found = _minimum_cut(self._ops, self._wanted, self._cost, price)
            else:  # it is folded, or it stays and its inputs are needed
                (op,) = self._ops
                inputs = self._wanted.union(op.inputs).difference(op.outputs)
                _, folded, _ = self._weigh(self._wanted)
                _, nbytes, staying = self._weigh(inputs)
                found = self._wanted if folded <= nbytes + price * staying else inputs
            self._cuts[price] = found
        return self._cuts[price]

    def _weigh(self, stored: set[V]) -> tuple[set[V], float, int]:
        """Return the needed values, their bytes plus the cost of staying ops, and their number."""
        staying: set[int] = set()
        needed: set[V] = set()
        pending = list(self._wanted)
        while pending:
            value = pending.pop()
            maker = self._maker.get(value)
            if value in stored:
                needed.add(value)
            elif maker is not None and maker not in staying:
                staying.add(maker)
                pending.extend(self._ops[maker].inputs)
        kept = sum(self._ops[k].cost for k in staying)
        return needed, sum(self._cost[v] for v in needed) + kept, len(staying)


def _components(ops: Sequence[RegionOp[V]], cost: Mapping[V, float]) -> list[list[RegionOp[V]]]:
    """Split into parts that share no value with a cost, which can be cut separately."""
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


def _minimum_cut(
    ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float], price: float
) -> set[V]:
    """Return the cheapest values to store; of equally cheap sets the one nearest to ``wanted``.

    An op that stays costs its own cost and the price, so a higher price never folds less.
    """
    network = _Network()
    index: dict[V, int] = {}
    """The start vertex of each value's own edge; the end vertex is the next number."""

    def before(value: V) -> int:
        vertex = index.get(value)
        if vertex is None:
            vertex = network.vertex()
            index[value] = vertex
            network.edge(vertex, network.vertex(), cost[value])
        return vertex

    for op in ops:
        vertex = network.vertex()
        for value in op.inputs:
            network.edge(before(value) + 1, vertex, math.inf)
        for value in op.outputs:
            network.edge(vertex, before(value), math.inf)
        network.edge(_SOURCE, vertex, op.cost + price)
    produced = {value for op in ops for value in op.outputs}
    for value, vertex in index.items():
        if value not in produced:
            network.edge(_SOURCE, vertex, cost[value])
        if value in wanted:
            network.edge(vertex + 1, _SINK, math.inf)
    reached = network.before_sink()
    return {v for v, vertex in index.items() if vertex + 1 in reached and vertex not in reached}


class _Network:
    """A network whose minimum cut is found from the sink's side.

    It is found by a maximum preflow, by push-relabel, highest label first (Goldberg, Tarjan 1988).
    Labels are lower bounds of the distance to the sink; if no vertex has a label, the sink is
    unreachable from all vertices above it. Excess that cannot reach the sink stays at its vertex.
    """

    def __init__(self) -> None:
        self._heads: list[list[int]] = [[], []]  # vertex -> its edges
        self._to: list[int] = []  # edges come in pairs: k and k ^ 1 are opposite
        self._left: list[float] = []

    def vertex(self) -> int:
        """Return a new vertex, besides _SOURCE and _SINK."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        """Add an edge; it is cut only if just its end is on the sink's side."""
        number = len(self._to)
        self._to += end, start
        self._left += capacity, 0
        self._heads[start].append(number)
        self._heads[end].append(number + 1)

    def before_sink(self) -> set[int]:
        """Return the vertices on the sink's side of the minimum cut with the smallest such side."""
        # the label without a path to the sink
        nowhere = len(self._heads)
        self._nowhere = nowhere
        self._label = [nowhere] * nowhere
        for vertex, distance in self._distances().items():
            self._label[vertex] = distance
        self._label[_SOURCE] = nowhere
        self._excess: list[float] = [0] * nowhere
        self._position = [0] * nowhere
        self._active: list[list[int]] = [[] for _ in self._heads]
        self._labelled: list[list[int]] = [[] for _ in self._heads]
        for vertex, label in enumerate(self._label):
            if label < nowhere:
                self._labelled[label].append(vertex)
        self._count = [len(vertices) for vertices in self._labelled]
        self._top = max(k for k, count in enumerate(self._count) if count)
        for edge in self._heads[_SOURCE]:
            self._push(edge, self._left[edge])
        highest = self._top
        while highest > 0:
            if self._active[highest]:
                highest = self._discharge(self._active[highest].pop(), highest)
            else:
                highest -= 1
        return set(self._distances())

    def _distances(self) -> dict[int, int]:
        """Return the number of edges to the sink from each vertex that can reach it."""
        distance = {_SINK: 0}
        queue = [_SINK]
        for vertex in queue:
            for edge in self._heads[vertex]:
                start = self._to[edge]
                if start not in distance and self._left[edge ^ 1] > 0:
                    distance[start] = distance[vertex] + 1
                    queue.append(start)
        return distance

    def _push(self, edge: int, amount: float) -> None:
        end = self._to[edge]
        self._left[edge] -= amount
        self._left[edge ^ 1] += amount
        if not self._excess[end] and 0 < self._label[end] < self._nowhere:
            self._active[self._label[end]].append(end)
        self._excess[end] += amount

    def _discharge(self, vertex: int, label: int) -> int:
        """Push the excess of a vertex, relabelling it as needed; return its final label."""
        edges = self._heads[vertex]
        while self._excess[vertex] and self._label[vertex] == label:
            position = self._position[vertex]
            if position == len(edges):
                label = self._relabel(vertex, label)
                continue
            edge = edges[position]
            if self._left[edge] > 0 and self._label[self._to[edge]] == label - 1:
                amount = min(self._excess[vertex], self._left[edge])
                self._push(edge, amount)
                self._excess[vertex] -= amount
            else:
                self._position[vertex] = position + 1
        return label

    def _relabel(self, vertex: int, label: int) -> int:
        """Raise the label of a vertex and return it, or the old one if the sink is unreachable."""
        self._position[vertex] = 0
        self._count[label] -= 1
        if not self._count[label]:
            self._label[vertex] = self._nowhere
            for above in range(label + 1, self._top + 1):  # they cannot reach the sink
                for other in self._labelled[above]:
                    if self._label[other] == above:
                        self._label[other] = self._nowhere
                self._labelled[above].clear()
                self._count[above] = 0
            self._top = label
            return label
        higher = 1 + min(self._label[self._to[e]] for e in self._heads[vertex] if self._left[e] > 0)
        self._label[vertex] = min(higher, self._nowhere)
        if higher >= self._nowhere:
            return label
        self._labelled[higher].append(vertex)
        self._count[higher] += 1
        self._top = max(self._top, higher)
        return higher
