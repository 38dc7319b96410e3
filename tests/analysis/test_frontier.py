"""Test which values `choose` stores, and that its time grows linearly.

Random regions are compared with an enumeration of all sets of values.
"""

import itertools
import math

import pytest
from call_count import calls_of
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.analysis.frontier import FORBIDDEN, Growth, RegionOp, choose


def kept_ops(ops, demanded, stored) -> set[int] | None:
    """Return the indices of the ops that compute the demanded values from the stored values.

    The result is None if a required value is not stored and no op computes it.
    """
    producer = {v: k for k, op in enumerate(ops) for v in op.outputs}
    kept: set[int] = set()
    pending = list(demanded)
    seen = set(pending)
    while pending:
        value = pending.pop()
        if value in stored:
            continue
        if value not in producer:
            return None
        kept.add(producer[value])
        for operand in ops[producer[value]].inputs:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return kept


def best(ops, demanded, cost) -> tuple[float, int]:
    """Return the lowest price of all sets of stored values, and the fewest kept ops at this price.

    The price is the stored bytes plus the cost of the kept ops.
    """
    values = sorted({v for op in ops for v in (*op.inputs, *op.outputs)})
    found = (math.inf, len(ops))
    for count in range(len(values) + 1):
        for stored in itertools.combinations(values, count):
            price = sum(cost[v] for v in stored)
            if price > found[0] or price == FORBIDDEN:
                continue
            kept = kept_ops(ops, demanded, stored)
            if kept is not None:
                found = min(found, (price + cost_of_ops(ops, kept), len(kept)))
    return found


def cost_of_ops(ops, kept) -> float:
    return sum(ops[k].cost for k in kept)


def price(ops, demanded, cost, choice) -> float:
    stored = sum(cost[v] for v in choice.stored)
    return stored + cost_of_ops(ops, kept_ops(ops, demanded, choice.stored))


@st.composite
def regions(draw):
    """Draw the ops of a small graph, the demanded values, and the costs of all values.

    The leaves are named l0, l1, ...; the results are named r0, r1, ... and s0, s1, ... Many costs
    are equal. Only the costs of results can be FORBIDDEN.
    """
    values = [f"l{k}" for k in range(draw(st.integers(1, 3)))]
    leaves = set(values)
    ops = []
    for k in range(draw(st.integers(1, 5))):
        inputs = draw(st.lists(st.sampled_from(values), max_size=3))
        outputs = [f"r{k}", f"s{k}"][: draw(st.sampled_from([1, 1, 1, 2]))]
        ops.append(RegionOp(inputs, outputs, draw(st.sampled_from([0, 0, 1, 4]))))
        values.extend(outputs)
    touched = sorted({v for op in ops for v in (*op.inputs, *op.outputs)})
    some_cost = st.sampled_from([0, 1, 1, 2, 3, 5, 8, FORBIDDEN])
    finite = st.sampled_from([0, 1, 2, 3, 5, 8])
    cost = {v: draw(finite if v in leaves else some_cost) for v in values}
    demanded = draw(st.lists(st.sampled_from(touched), min_size=1, max_size=4, unique=True))
    return draw(st.permutations(ops)), demanded, cost


@settings(max_examples=500, deadline=None)
@given(regions())
def test_fewest_bytes_then_fewest_ops(region):
    ops, demanded, cost = region
    choice = choose(ops, demanded, cost)
    kept = kept_ops(ops, demanded, choice.stored)
    assert kept is not None, "the demanded values cannot be computed from the stored values"
    found = price(ops, demanded, cost, choice), len(kept)
    assert found == best(ops, demanded, cost)


@settings(max_examples=300, deadline=None)
@given(regions(), st.integers(0, 20), st.integers(1, 8))
def test_growth_is_never_more_than_allowed(region, allowed, per_op):
    ops, demanded, cost = region
    least = choose(ops, demanded, cost)
    price_of_least = price(ops, demanded, cost, least)
    before = kept_ops(*region[:2], least.stored)
    choice = choose(ops, demanded, cost, [Growth(allowed)])
    assert price(ops, demanded, cost, choice) == price_of_least + choice.spent
    assert choice.spent <= allowed
    kept = kept_ops(ops, demanded, choice.stored)
    assert kept is not None and len(kept) <= len(before)
    if sum(cost[v] for v in set(demanded)) - price_of_least <= allowed:
        assert not kept
    bounded = choose(ops, demanded, cost, [Growth(allowed, per_op)])
    gone = len(before) - len(kept_ops(ops, demanded, bounded.stored))
    assert price(ops, demanded, cost, bounded) - price_of_least <= min(allowed, per_op * gone)


def chain(*costs: float):
    ops = [RegionOp([k], [k + 1]) for k in range(len(costs) - 1)]
    return ops, [len(costs) - 1], dict(enumerate(costs))


FORKED = [RegionOp(["w"], [f"t{k}"]) for k in range(3)], ["t0", "t1", "t2"]
FORKED_COST = {"w": 8, "t0": 8, "t1": 9, "t2": 10}
PAIRS = [RegionOp([f"a{k}"], [f"b{k}"]) for k in range(3)], ["b0", "b1", "b2"]
LONG, _, LONG_COST = chain(4, 20, 20, 20)
BESIDE = [*LONG, RegionOp(["a"], ["b"])], [3, "b"], {**LONG_COST, "a": 4, "b": 14}
TURNED = [RegionOp(["w"], ["t"])]
TWICE = [RegionOp(["w"], ["t"]), RegionOp(["w"], ["u"])]
CHOICES = {
    "of equal bytes the last": (chain(4, 4, 4), [], {2}),
    "the narrow place": (chain(8, 5, 2, 4, 9), [], {2}),
    "what is forbidden is passed over": (chain(8, 2, FORBIDDEN), [], {1}),
    "what is forbidden, in the middle": (chain(8, FORBIDDEN, 3), [], {2}),
    "growth does not buy what is forbidden": (chain(8, 2, FORBIDDEN), [10**30], {1}),
    "too little growth for a fold": (chain(4, 6), [1], {0}),
    "growth buys a fold": (chain(4, 6), [2], {1}),
    "the cheapest regions first": (
        (*PAIRS, {"a0": 1, "b0": 6, "a1": 1, "b1": 2, "a2": 1, "b2": 4}),
        [4],
        {"a0", "b1", "b2"},
    ),
    "a part of a region": (chain(1, 2, 9, 30), [8], {2}),
    "not quite three results": ((*FORKED, FORKED_COST), [18], {"w"}),
    "all three, without the weight": ((*FORKED, FORKED_COST), [19], {"t0", "t1", "t2"}),
    "where growth folds most": (BESIDE, [16], {3, "a"}),
    "where it folds most of what it can": (BESIDE, [15], {0, "b"}),
    "too little for each op": (chain(4, 20, 20, 20), [100, 5], {0}),
    "enough for each op": (chain(4, 20, 20, 20), [100, 6], {3}),
    "an op worth 1 byte": (([RegionOp([0], [1], 1)], [1], {0: 4, 1: 6}), [], {0}),
    "an op worth what it saves": (([RegionOp([0], [1], 2)], [1], {0: 4, 1: 6}), [], {1}),
    "an op worth more": (([RegionOp([0], [1], 3)], [1], {0: 4, 1: 6}), [], {1}),
    "a result in place of its weight": ((TURNED, ["t"], {"w": 8, "t": 8}), [], {"t"}),
    "a weight that is needed counts once": ((TURNED, ["t", "w"], {"w": 8, "t": 8}), [], {"w"}),
    "two results are dearer": ((TWICE, ["t", "u"], {"w": 8, "t": 8, "u": 8}), [], {"w"}),
    "two small results are not": ((TWICE, ["t", "u"], {"w": 8, "t": 4, "u": 4}), [], {"t", "u"}),
    "an op without inputs stays": (([RegionOp([], ["fill"])], ["fill"], {"fill": 4096}), [], set()),
    "nobody demands anything": ((chain(4, 4)[0], [], {0: 4, 1: 4}), [], set()),
}


@pytest.mark.parametrize("what", CHOICES)
def test_stored_values(what):
    region, growth, stored = CHOICES[what]
    assert choose(*region, [Growth(*growth)] if growth else ()).stored == stored


def uniform(n):
    return chain(*[4] * (n + 1))


def with_weights(n):
    """Return a chain of ``n`` ops, each of which also reads a separate weight."""
    ops = [RegionOp([k, f"w{k}"], [k + 1]) for k in range(n)]
    return ops, [n], {**dict.fromkeys(range(n + 1), 4), **{f"w{k}": 4 for k in range(n)}}


def separate(n):
    ops = [RegionOp([f"a{k}"], [f"b{k}"]) for k in range(n)]
    names = [f"{side}{k}" for side in "ab" for k in range(n)]
    return ops, [f"b{k}" for k in range(n)], dict.fromkeys(names, 4)


SHAPES = {
    "uniform": uniform,
    "falling": lambda n: chain(*range(n + 1, 0, -1)),
    "rising": lambda n: chain(*range(1, n + 2)),
    "free": lambda n: chain(*[0] * (n + 1)),
    "demanded everywhere": lambda n: (uniform(n)[0], [*range(n + 1)], uniform(n)[2]),
    "with weights": with_weights,
    "separate": separate,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_grow_linearly(shape):
    make = SHAPES[shape]
    steps = [calls_of(lambda n=n: choose(*make(n))) for n in (1_000, 4_000)]
    assert steps[1] <= 4.5 * steps[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_grow_linearly_with_growth_to_spend(shape):
    make = SHAPES[shape]
    steps = [calls_of(lambda n=n: choose(*make(n), [Growth(n // 4)])) for n in (500, 2_000)]
    assert steps[1] <= 5 * steps[0]
