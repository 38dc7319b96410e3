"""The frontier: which constant values to store so that the fewest bytes are stored.

A constant region is a graph of ops over values. Some values are demanded by the rest of the
model. Each demanded value is either stored, or its op stays and then needs its own inputs. So on
every path from what the file holds to what is demanded some value is stored: a cut, and the
cheapest one is a minimum cut of a network in which every value is an edge with its stored bytes
as capacity. Inputs that several ops share, and weights that are needed as they are anyway, count
once.

With a price on every op that stays, the minimum cut folds more ops and stores more bytes. Where
bytes are allowed above the minimum, the highest price is searched whose cut they pay for (a
Lagrange multiplier).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

from onnxfold.analysis.minimum_cut import RegionOp, V, minimum_cut

__all__ = ["FORBIDDEN", "Choice", "Growth", "RegionOp", "choose", "highest_price"]

FORBIDDEN = math.inf
"""Cost of a value that cannot be stored, or must not be."""

_STEPS = 40  # of the search for a price
_FINEST = 1e-3  # what two prices differ by at least, as binary logarithms


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
            parts.append(_Part(part, inside, cost))
    for allowed, per_op in growth:
        if allowed > 0:
            total.spent += _spend(parts, allowed, per_op)
    for found in parts:
        total.stored |= found.stored
    return total


class _Part(Generic[V]):
    """Ops that share no value with others, and what is stored of them."""

    def __init__(self, ops: Sequence[RegionOp[V]], wanted: set[V], cost: Mapping[V, float]) -> None:
        self._ops = ops
        self._wanted = wanted
        self._cost = cost
        self._maker = {v: op for op in ops for v in op.outputs}
        self.store(self.at_price(0))

    def store(self, stored: set[V]) -> None:
        """Store these values."""
        self.stored = stored
        self.bytes, self.staying = self.weigh(stored)

    def at_price(self, price: float) -> set[V]:
        """The minimum cut if each op that stays costs so much more."""
        return minimum_cut(self._ops, self._wanted, self._cost, price)

    def weigh(self, stored: set[V]) -> tuple[float, int]:
        """What these values cost with the ops that stay, and how many stay."""
        staying: dict[int, RegionOp[V]] = {}
        pending = [v for v in self._wanted if v not in stored]
        while pending:
            maker = self._maker.get(pending.pop())
            if maker is not None and id(maker) not in staying:
                staying[id(maker)] = maker
                pending.extend(v for v in maker.inputs if v not in stored)
        kept = sum(op.cost for op in staying.values())
        return sum(self._cost[v] for v in stored) + kept, len(staying)


def _spend(parts: Sequence[_Part[V]], allowed: float, per_op: float) -> float:
    """Store more of parts, all together at most ``allowed`` bytes more; return how many more."""
    left = allowed
    parts = [part for part in parts if part.staying]

    def extra(price: float) -> float:
        return sum(part.weigh(part.at_price(price))[0] - part.bytes for part in parts)

    most = math.floor(min(allowed, per_op))  # whole bytes: sums of them are exact
    price = highest_price(extra, allowed, most)
    for price in (price, *[most] * (price < most)):
        offers = []
        for part in parts:
            stored = part.at_price(price)
            nbytes, staying = part.weigh(stored)
            if staying < part.staying:
                ratio = (nbytes - part.bytes) / (part.staying - staying)
                offers.append((ratio, nbytes - part.bytes, part, stored))
        for _, more, part, stored in sorted(offers, key=lambda offer: offer[0]):
            if more <= left:
                left -= more
                part.store(stored)
    return allowed - left


def highest_price(bytes_at: Callable[[float], float], allowed: float, most: float) -> float:
    """The highest price, from 1 on, whose cut takes no more bytes than allowed; 0 if none does.

    Args:
        bytes_at: What the cut at a price takes: a higher price never takes fewer bytes.
        allowed: Bytes.
        most: The highest price to consider.
    """
    if bytes_at(most) <= allowed:
        return most
    low, high, best = 0.0, math.log2(most), 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if bytes_at(2.0**middle) <= allowed:
            low, best = middle, 2.0**middle
        else:
            high = middle
        if high - low < _FINEST:
            break
    return best


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
