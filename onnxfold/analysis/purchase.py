"""Spending allowed growth: which values above the minimum to store so that the most ops fold.

With a price on every op that stays, the minimum cut folds more. What each part would store at the
highest price is bought, the fewest bytes for an op first, and then single values are, for as long
as anything is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from onnxfold.analysis.minimum_cut import RegionOp, V, minimum_cut

_VISITS = 16  # how often an op may be looked at when single values are bought, on average


class Subregion(Generic[V]):
    """Ops that share no value with others, and what is stored of them.

    Args:
        ops: The ops.
        wanted: Values of theirs that something else reads.
        cost: What each value costs to store.
        stored: A cut: what is stored.
    """

    def __init__(
        self,
        ops: Sequence[RegionOp[V]],
        wanted: set[V],
        cost: Mapping[V, float],
        stored: set[V],
    ) -> None:
        self.ops = ops
        self.wanted = wanted
        self.cost = cost
        self._maker = {v: k for k, op in enumerate(ops) for v in op.outputs}
        self.take(stored)

    def take(self, stored: set[V]) -> None:
        """Store these values."""
        self.stored = stored
        self.bytes = sum(self.cost[v] for v in stored)
        self.staying = self.staying_with(stored)

    def bytes_of(self, ops: Iterable[int]) -> float:
        """What it costs to keep these ops, besides what they read."""
        return sum(self.ops[k].cost for k in ops)

    def at_price(self, price: float) -> set[V]:
        """The minimum cut if each op that stays costs so much more."""
        return minimum_cut(self.ops, self.wanted, self.cost, price)

    def staying_with(self, stored: set[V]) -> set[int]:
        """The indices of the ops that stay when these values are stored."""
        staying: set[int] = set()
        pending = [v for v in self.wanted if v not in stored]
        while pending:
            maker = self._maker.get(pending.pop())
            if maker is None or maker in staying:
                continue
            staying.add(maker)
            pending.extend(v for v in self.ops[maker].inputs if v not in stored)
        return staying

    def maker(self, value: V) -> int | None:
        """The op that makes the value, if it is one of the part's."""
        return self._maker.get(value)


@dataclass(frozen=True)
class _Offer(Generic[V]):
    """A larger set of one part: what it costs more with all that stays, how many ops fold by it."""

    part: Subregion[V]
    stored: set[V]
    extra: float
    gain: int

    @classmethod
    def of(cls, part: Subregion[V], stored: set[V]) -> _Offer[V]:
        gone = part.staying - part.staying_with(stored)
        extra = sum(part.cost[v] for v in stored) - part.bytes - part.bytes_of(gone)
        return cls(part, stored, extra, len(gone))


def buy(parts: Sequence[Subregion[V]], growth: float, per_op: float) -> float:
    """Let parts store more, all together at most ``growth`` bytes more, so that more ops fold.

    Args:
        parts: Parts at their minimum; changed.
        growth: Bytes above the minimum.
        per_op: Bytes for each op that folds by them.

    Returns:
        How many more bytes they store.
    """
    left = growth
    price = math.floor(min(growth, per_op))  # whole bytes: sums of them are exact
    offers = [_Offer.of(part, part.at_price(price)) for part in parts if part.staying]
    folding_more = [offer for offer in offers if offer.gain > 0]
    for offer in sorted(folding_more, key=lambda offer: offer.extra / offer.gain):
        if offer.extra <= left:
            left -= offer.extra
            offer.part.take(offer.stored)
    return growth - _buy_single([part for part in parts if part.staying], left, per_op)


def _buy_single(parts: Sequence[Subregion[V]], left: float, per_op: float) -> float:
    """Buy single values, the cheapest for each op that goes first; return what is left."""
    for part in parts:
        needs = _Needs(part)
        visits = _VISITS * len(part.ops)
        priced = []
        for op in sorted(part.staying):
            for value in part.ops[op].outputs:
                if part.cost[value] == math.inf or visits < 0:
                    continue
                extra, gone, _ = needs.without(value)
                visits -= 1 + len(gone)
                if gone:
                    priced.append((extra / len(gone), op, value))
        bought = False
        for _, op, value in sorted(priced, key=lambda p: p[:2]):
            if op not in needs.staying:
                continue
            extra, gone, freed = needs.without(value)
            if gone and extra <= min(left, per_op * len(gone)):
                left -= extra
                needs.store(value, gone, freed)
                bought = True
        if bought:
            part.take(needs.stored)
    return left


class _Needs(Generic[V]):
    """Who still reads each value of a part: the ops that stay, and the rest of the model."""

    def __init__(self, part: Subregion[V]) -> None:
        self._part = part
        self.staying = set(part.staying)
        self.stored = set(part.stored)
        self._readers: Counter[V] = Counter(part.wanted)
        for op in self.staying:
            self._readers.update(set(part.ops[op].inputs))

    def without(self, value: V) -> tuple[float, dict[int, None], list[V]]:
        """What storing a value costs more, with the ops that go by it; what is stored no longer."""
        part = self._part
        gone: dict[int, None] = {}
        freed: list[V] = []
        unread = Counter({value: self._readers[value]})
        pending = [value]
        while pending:
            current = pending.pop()
            if current in self.stored:
                freed.append(current)
                continue
            op = part.maker(current)
            if op is None or op not in self.staying or op in gone:
                continue
            outputs = part.ops[op].outputs
            if any(self._readers[v] > unread[v] for v in outputs if v not in self.stored):
                continue
            gone[op] = None
            for operand in set(part.ops[op].inputs):
                unread[operand] += 1
                if unread[operand] == self._readers[operand]:
                    pending.append(operand)
        extra = part.cost[value] - sum(part.cost[v] for v in freed) - part.bytes_of(gone)
        return extra, gone, freed

    def store(self, value: V, gone: Iterable[int], freed: Iterable[V]) -> None:
        """Store the value; the ops and the stored values that are then not needed go."""
        for op in gone:
            self.staying.discard(op)
            self._readers.subtract(set(self._part.ops[op].inputs))
        self.stored.difference_update(freed)
        self.stored.add(value)
