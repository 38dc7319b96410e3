"""The frontier: the constant values to store so that the model has the fewest bytes.

A constant region is a graph of ops and values. The rest of the model reads some of these values,
which are called demanded. A demanded value is stored, or its op is kept and the inputs of the op
are required, too. So every path from a value in the file to a demanded value contains a stored
value: the stored values are a cut. The best cut is a minimum cut of a network in which every value
is an edge. The capacity of an edge is the number of bytes that the value takes in the file. A value
with several uses counts once.

With a price for every kept op, the minimum cut folds more ops and stores more bytes. If bytes above
the minimum are allowed, `choose` searches for the highest affordable price, which is a Lagrange
multiplier.
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

# Upper bound of prices: no region has that many bytes.
_MAX_PRICE = 1 << 62
# Number of positive prices that are tried. Each is half of the next higher one.
_N_PRICES = 9
_SOURCE = 0
_SINK = 1


@dataclass(eq=False, slots=True)
class RegionOp(Generic[V]):
    """An op of a constant region: its inputs and outputs, and its cost in bytes if it is kept."""

    inputs: Sequence[V]
    outputs: Sequence[V]
    cost: float = 0


class Growth(NamedTuple):
    """Bytes that may be stored above the minimum in order to fold more ops."""

    allowed: float
    per_op: float = math.inf
    """Maximum number of these bytes for each additional folded op."""


@dataclass
class Choice(Generic[V]):
    """The values of a region to store, and the growth that they use."""

    stored: set[V] = field(default_factory=set)
    spent: float = 0
    """Bytes stored above the minimum."""


def choose(
    ops: Sequence[RegionOp[V]],
    demanded: Iterable[V],
    cost: Mapping[V, float],
    growth: Iterable[Growth] = (),
) -> Choice[V]:
    """Return the values to store; of equally small sets, the one that folds the most ops.

    Args:
        ops: The ops of the region in any order. Values that no op of the region computes are in
            the file.
        demanded: The values that are read outside of the region.
        cost: The stored bytes of each value, or FORBIDDEN if the value cannot be stored.
        growth: Allowances above the minimum, which apply one after the other.
    """
    demanded = set(demanded)
    total = Choice[V]()
    parts = []
    for component in _components(ops, cost):
        values = {v for op in component for v in (*op.inputs, *op.outputs)}
        parts.append(_Part(component, values & demanded, cost))
    if not parts:
        return total
    for allowed, per_op in growth:
        remaining = allowed
        # prices are integers, because floating-point sums of integers are exact
        price = int(min(allowed, per_op, _MAX_PRICE))
        offers = {part: part.bytes_per_op(price) for part in parts if part.n_kept and price}
        for part in sorted(offers, key=offers.__getitem__):
            if offers[part] < math.inf:
                remaining -= part.spend(remaining, price)
        total.spent += allowed - remaining
    for part in parts:
        total.stored |= part.stored
    return total


class _Part(Generic[V]):
    """Ops that can be cut separately from all other ops, and the stored values of these ops."""

    def __init__(
        self, ops: Sequence[RegionOp[V]], demanded: set[V], cost: Mapping[V, float]
    ) -> None:
        self._ops = ops
        self._demanded = demanded
        self._cost = cost
        self._cuts: dict[int, set[V]] = {}
        self._producer = {v: k for k, op in enumerate(ops) for v in op.outputs}
        self.stored = self._cut(0)
        _, self._bytes, self.n_kept = self._weigh(self.stored)

    def bytes_per_op(self, price: int) -> float:
        """Return the additional bytes for each additional folded op in the cut at a price.

        The result is infinite if the cut folds no more ops than the current one.
        """
        _, nbytes, n_kept = self._weigh(self._cut(price))
        folded = self.n_kept - n_kept
        return (nbytes - self._bytes) / folded if folded > 0 else math.inf

    def spend(self, allowed: float, max_price: int) -> float:
        """Use the cut at the highest affordable price, and return the bytes that this cut adds.

        If this cut folds no more ops than the current one, the current one is kept, and the result
        is 0.
        """

        def added_bytes(price: int) -> float:
            return self._weigh(self._cut(price))[1] - self._bytes

        prices = sorted({0, *(max_price >> k for k in range(_N_PRICES))})
        if added_bytes(max_price) <= allowed:
            n_affordable = len(prices)
        else:
            n_affordable = bisect.bisect(prices, allowed, key=added_bytes)
        stored, nbytes, n_kept = self._weigh(self._cut(prices[n_affordable - 1]))
        if n_kept >= self.n_kept:
            return 0
        spent = nbytes - self._bytes
        self.stored = stored
        self._bytes = nbytes
        self.n_kept = n_kept
        return spent

    def _cut(self, price: int) -> set[V]:
        """Return the minimum cut with a price for each kept op."""
        if price not in self._cuts:
            if len(self._ops) > 1:
                cut = _minimum_cut(self._ops, self._demanded, self._cost, price)
            else:  # the op is folded, or it is kept and its inputs are required
                (op,) = self._ops
                inputs = self._demanded.union(op.inputs).difference(op.outputs)
                _, folded, _ = self._weigh(self._demanded)
                _, nbytes, n_kept = self._weigh(inputs)
                cut = self._demanded if folded <= nbytes + price * n_kept else inputs
            self._cuts[price] = cut
        return self._cuts[price]

    def _weigh(self, stored: set[V]) -> tuple[set[V], float, int]:
        """Return the required stored values, the total bytes, and the number of kept ops.

        The total is the sum of the bytes of these values and the cost of the kept ops.
        """
        kept: set[int] = set()
        required: set[V] = set()
        pending = list(self._demanded)
        while pending:
            value = pending.pop()
            producer = self._producer.get(value)
            if value in stored:
                required.add(value)
            elif producer is not None and producer not in kept:
                kept.add(producer)
                pending.extend(self._ops[producer].inputs)
        cost_of_ops = sum(self._ops[k].cost for k in kept)
        return required, sum(self._cost[v] for v in required) + cost_of_ops, len(kept)


def _components(ops: Sequence[RegionOp[V]], cost: Mapping[V, float]) -> list[list[RegionOp[V]]]:
    """Split ops into parts that can be cut separately.

    Different parts share only values that are in the file and cost nothing.
    """
    parent = list(range(len(ops)))

    def find(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    first: dict[V, int] = {}
    produced = {v for op in ops for v in op.outputs}
    for k, op in enumerate(ops):
        for value in (*op.inputs, *op.outputs):
            if cost[value] or value in produced:
                parent[find(k)] = find(first.setdefault(value, k))
    parts: dict[int, list[RegionOp[V]]] = {}
    for k, op in enumerate(ops):
        parts.setdefault(find(k), []).append(op)
    return list(parts.values())


def _minimum_cut(
    ops: Sequence[RegionOp[V]], demanded: set[V], cost: Mapping[V, float], price: float
) -> set[V]:
    """Return the cheapest set of values to store.

    Of equally cheap sets, the set closest to the demanded values is returned. A kept op costs its
    own cost plus the price, so a higher price never folds fewer ops.
    """
    network = _Network()
    index: dict[V, int] = {}
    """The start vertex of the edge of each value; the end vertex has the next number."""

    def start_of(value: V) -> int:
        vertex = index.get(value)
        if vertex is None:
            vertex = network.vertex()
            index[value] = vertex
            network.edge(vertex, network.vertex(), cost[value])
        return vertex

    for op in ops:
        vertex = network.vertex()
        for value in op.inputs:
            network.edge(start_of(value) + 1, vertex, math.inf)
        for value in op.outputs:
            network.edge(vertex, start_of(value), math.inf)
        network.edge(_SOURCE, vertex, op.cost + price)
    produced = {value for op in ops for value in op.outputs}
    for value, vertex in index.items():
        if value not in produced:
            network.edge(_SOURCE, vertex, cost[value])
        if value in demanded:
            network.edge(vertex + 1, _SINK, math.inf)
    sink_side = network.sink_side()
    return {v for v, vertex in index.items() if vertex + 1 in sink_side and vertex not in sink_side}


class _Network:
    """A flow network with a minimum cut whose side of the sink is the smallest.

    A maximum preflow determines the cut. The push-relabel algorithm computes the preflow and
    discharges vertices with the highest label first (A. Goldberg and R. Tarjan, "A new approach to
    the maximum-flow problem", 1988). Labels are lower bounds of the distance to the sink. If no
    vertex has the label k, the sink is unreachable from all vertices with labels higher than k.
    Excess that cannot reach the sink remains at its vertex.
    """

    def __init__(self) -> None:
        self._heads: list[list[int]] = [[], []]  # the edges that start at each vertex
        self._to: list[int] = []  # the end of each edge; k and k ^ 1 have opposite directions
        self._residual: list[float] = []

    def vertex(self) -> int:
        """Add a vertex and return its number."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        """Add an edge. It is cut if its end is on the side of the sink, but not its start."""
        number = len(self._to)
        self._to += end, start
        self._residual += capacity, 0
        self._heads[start].append(number)
        self._heads[end].append(number + 1)

    def sink_side(self) -> set[int]:
        """Return the smallest set of vertices on the side of the sink in a minimum cut."""
        # the label of vertices without a path to the sink
        unreachable = len(self._heads)
        self._unreachable = unreachable
        self._label = [unreachable] * unreachable
        for vertex, distance in self._distances().items():
            self._label[vertex] = distance
        self._label[_SOURCE] = unreachable
        self._excess: list[float] = [0] * unreachable
        self._position = [0] * unreachable
        self._active: list[list[int]] = [[] for _ in self._heads]
        self._labelled: list[list[int]] = [[] for _ in self._heads]
        for vertex, label in enumerate(self._label):
            if label < unreachable:
                self._labelled[label].append(vertex)
        self._count = [len(vertices) for vertices in self._labelled]
        self._top = max(k for k, count in enumerate(self._count) if count)
        for edge in self._heads[_SOURCE]:
            self._push(edge, self._residual[edge])
        highest = self._top
        while highest > 0:
            if self._active[highest]:
                highest = self._discharge(self._active[highest].pop(), highest)
            else:
                highest -= 1
        return set(self._distances())

    def _distances(self) -> dict[int, int]:
        """Return the distance to the sink, in edges, of each vertex that can reach it."""
        distance = {_SINK: 0}
        queue = [_SINK]
        for vertex in queue:
            for edge in self._heads[vertex]:
                start = self._to[edge]
                if start not in distance and self._residual[edge ^ 1] > 0:
                    distance[start] = distance[vertex] + 1
                    queue.append(start)
        return distance

    def _push(self, edge: int, amount: float) -> None:
        end = self._to[edge]
        self._residual[edge] -= amount
        self._residual[edge ^ 1] += amount
        if not self._excess[end] and 0 < self._label[end] < self._unreachable:
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
            if self._residual[edge] > 0 and self._label[self._to[edge]] == label - 1:
                amount = min(self._excess[vertex], self._residual[edge])
                self._push(edge, amount)
                self._excess[vertex] -= amount
            else:
                self._position[vertex] = position + 1
        return label

    def _relabel(self, vertex: int, label: int) -> int:
        """Raise the label of a vertex, and return the new label.

        If the sink is unreachable from the vertex, the old label is returned.
        """
        self._position[vertex] = 0
        self._count[label] -= 1
        if not self._count[label]:
            self._label[vertex] = self._unreachable
            for above in range(label + 1, self._top + 1):  # these vertices cannot reach the sink
                for other in self._labelled[above]:
                    if self._label[other] == above:
                        self._label[other] = self._unreachable
                self._labelled[above].clear()
                self._count[above] = 0
            self._top = label
            return label
        edges = (edge for edge in self._heads[vertex] if self._residual[edge] > 0)
        higher = 1 + min(self._label[self._to[edge]] for edge in edges)
        self._label[vertex] = min(higher, self._unreachable)
        if higher >= self._unreachable:
            return label
        self._labelled[higher].append(vertex)
        self._count[higher] += 1
        self._top = max(self._top, higher)
        return higher
