"""The minimum cut of a constant region: a network in which every value is an edge.

An edge's capacity is what its value costs to store; an op that stays adds an edge of its own.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxfold.analysis.preflow import SINK, SOURCE, Network

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
    network = Network()
    index: dict[V, int] = {}
    """The vertex before each value's own edge; the one after it is the next number."""

    def before(value: V) -> int:
        vertex = index.get(value)
        if vertex is None:
            vertex = index[value] = network.vertex()
            network.edge(vertex, network.vertex(), cost[value])
        return vertex

    for op in ops:
        vertex = network.vertex()
        for value in op.inputs:
            network.edge(before(value) + 1, vertex, math.inf)
        for value in op.outputs:
            network.edge(vertex, before(value), math.inf)
        network.edge(SOURCE, vertex, op.cost + price)
    produced = {value for op in ops for value in op.outputs}
    for value, vertex in index.items():
        if value not in produced:
            network.edge(SOURCE, vertex, cost[value])
        if value in wanted:
            network.edge(vertex + 1, SINK, math.inf)
    reached = network.before_sink()
    return {v for v, vertex in index.items() if vertex + 1 in reached and vertex not in reached}
