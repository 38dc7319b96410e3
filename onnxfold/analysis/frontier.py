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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

from onnxfold.analysis.minimum_cut import RegionOp, V, minimum_cut
from onnxfold.analysis.purchase import Subregion, buy

__all__ = ["FORBIDDEN", "Choice", "Growth", "RegionOp", "choose"]

FORBIDDEN = math.inf
"""Cost of a value that cannot be stored, or must not be."""


class Growth(NamedTuple):
    """Bytes that may be stored above the minimum if more ops fold by it."""

    allowed: float
    per_op: float = math.inf
    """Bytes of these that may be spent for each op that folds."""


@dataclass
class Choice(Generic[V]):
    """What to store of one region."""

    stored: set[V] = field(default_factory=set)
    spent: float = 0
    """Bytes above the minimum that were spent."""


def choose(
    ops: Sequence[RegionOp[V]],
    demanded: Iterable[V],
    cost: Mapping[V, float],
    growth: Iterable[Growth] = (),
) -> Choice[V]:
    """The set of values to store; of equally cheap ones the one that folds the most ops.

    Args:
        ops: The region's ops in any order; a value that none of them makes is in the file.
        demanded: Values that something outside the region reads.
        cost: Stored bytes of each value; FORBIDDEN for one that cannot be stored (never so for
            a value that is in the file).
        growth: What may be spent above the minimum, one after the other.
    """
    wanted = set(demanded)
    total = Choice[V]()
    parts = []
    for part in _components(ops, cost):
        touched = {v for op in part for v in (*op.inputs, *op.outputs)}
        inside = touched & wanted
        # one op on its own goes if what it makes takes no more bytes than what it reads
        kept = sum(cost[v] for v in touched.difference(part[0].outputs) - inside) + part[0].cost
        if len(part) == 1 and sum(cost[v] for v in inside.intersection(part[0].outputs)) <= kept:
            total.stored |= inside
        else:
            parts.append(Subregion(part, inside, cost, minimum_cut(part, inside, cost)))
    for allowed, per_op in growth:
        staying = [part for part in parts if part.staying]
        if staying and allowed > 0:
            total.spent += buy(staying, allowed, per_op)
    for found in parts:
        total.stored |= found.stored
    return total


def _components(ops: Sequence[RegionOp[V]], cost: Mapping[V, float]) -> list[list[RegionOp[V]]]:
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
