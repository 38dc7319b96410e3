"""The frontier against an enumeration of every set of values that could be stored."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.analysis.frontier import FORBIDDEN, Growth, RegionOp, choose

# ---------------------------------------------------------------- by enumeration


def staying_ops(ops, demanded, stored) -> set[int] | None:
    """The ops that stay if just these values are stored; None if something is then missing."""
    producer = {v: k for k, op in enumerate(ops) for v in op.outputs}
    staying: set[int] = set()
    pending = list(demanded)
    seen = set(pending)
    while pending:
        value = pending.pop()
        if value in stored:
            continue
        if value not in producer:
            return None
        staying.add(producer[value])
        for operand in ops[producer[value]].inputs:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return staying


def best(ops, demanded, cost) -> tuple[float, int]:
    """Least bytes and cost of what stays; and the fewest ops that stay at that price."""
    values = sorted({v for op in ops for v in (*op.inputs, *op.outputs)})
    found = (math.inf, len(ops))
    for count in range(len(values) + 1):
        for stored in itertools.combinations(values, count):
            price = sum(cost[v] for v in stored)
            if price > found[0] or price == FORBIDDEN:
                continue
            staying = staying_ops(ops, demanded, stored)
            if staying is not None:
                found = min(found, (price + worth(ops, staying), len(staying)))
    return found


def worth(ops, staying) -> float:
    return sum(ops[k].cost for k in staying)


def price(ops, demanded, cost, choice) -> float:
    """Bytes of what is stored and cost of what stays."""
    stored = sum(cost[v] for v in choice.stored)
    return stored + worth(ops, staying_ops(ops, demanded, choice.stored))


@st.composite
def regions(draw):
    """A small graph of ops; leaves l0.., results r0..; costs with many ties and some forbidden."""
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
def test_the_least_bytes_and_of_those_the_fewest_ops(region):
    ops, demanded, cost = region
    choice = choose(ops, demanded, cost)
    staying = staying_ops(ops, demanded, choice.stored)
    assert staying is not None, "what is demanded cannot be computed from what is stored"
    found = price(ops, demanded, cost, choice), len(staying)
    assert found == best(ops, demanded, cost)


@settings(max_examples=300, deadline=None)
@given(regions(), st.integers(0, 20))
def test_growth_is_never_more_than_allowed(region, allowed):
    ops, demanded, cost = region
    least = choose(ops, demanded, cost)
    choice = choose(ops, demanded, cost, [Growth(allowed)])
    assert price(ops, demanded, cost, choice) == price(ops, demanded, cost, least) + choice.spent
    assert choice.spent <= allowed
    staying = staying_ops(ops, demanded, choice.stored)
    assert staying is not None
    assert len(staying) <= len(staying_ops(ops, demanded, least.stored))
    if sum(cost[v] for v in set(demanded)) - price(ops, demanded, cost, least) <= allowed:
        assert not staying


def needed(ops, demanded, stored) -> set:
    """Of what is stored, what is read: by an op that stays, or outside."""
    staying = staying_ops(ops, demanded, stored)
    return stored & {*demanded, *(v for k in staying for v in ops[k].inputs)}


@settings(max_examples=300, deadline=None)
@given(regions(), st.integers(1, 20))
def test_nothing_that_is_left_can_still_be_bought(region, allowed):
    """No single value more fits the growth and lets an op go."""
    ops, demanded, cost = region
    least = price(ops, demanded, cost, choose(ops, demanded, cost))
    stored = choose(ops, demanded, cost, [Growth(allowed)]).stored
    staying = staying_ops(ops, demanded, stored)
    for value in cost.keys() - stored:
        other = needed(ops, demanded, stored | {value})
        left = staying_ops(ops, demanded, other)
        if sum(cost[v] for v in other) + worth(ops, left) <= least + allowed:
            assert len(left) >= len(staying), value


@settings(max_examples=300, deadline=None)
@given(regions(), st.integers(1, 20), st.integers(1, 8))
def test_no_more_is_spent_for_an_op_than_allowed(region, allowed, per_op):
    ops, demanded, cost = region
    least = choose(ops, demanded, cost)
    choice = choose(ops, demanded, cost, [Growth(allowed, per_op)])
    before, after = (staying_ops(ops, demanded, c.stored) for c in (least, choice))
    spent = price(ops, demanded, cost, choice) - price(ops, demanded, cost, least)
    assert spent <= min(allowed, per_op * (len(before) - len(after)))


# ---------------------------------------------------------------- what users see of it


def chain(*costs: float):
    ops = [RegionOp([k], [k + 1]) for k in range(len(costs) - 1)]
    return ops, [len(costs) - 1], dict(enumerate(costs))


def test_of_equal_bytes_the_last_is_stored():
    assert choose(*chain(4, 4, 4)).stored == {2}


def test_the_narrow_place_is_stored():
    assert choose(*chain(8, 5, 2, 4, 9)).stored == {2}


def test_a_forbidden_value_is_passed_over():
    assert choose(*chain(8, 2, FORBIDDEN)).stored == {1}
    assert choose(*chain(8, FORBIDDEN, 3)).stored == {2}


def test_a_forbidden_value_is_not_bought_by_growth():
    assert choose(*chain(8, 2, FORBIDDEN), growth=[Growth(10**30)]).stored == {1}


def test_growth_buys_a_fold():
    assert choose(*chain(4, 6), growth=[Growth(1)]).stored == {0}
    assert choose(*chain(4, 6), growth=[Growth(2)]).stored == {1}


def test_growth_goes_to_the_cheapest_regions_first():
    ops = [RegionOp([f"a{k}"], [f"b{k}"]) for k in range(3)]
    cost = {"a0": 1, "b0": 6, "a1": 1, "b1": 2, "a2": 1, "b2": 4}
    choice = choose(ops, ["b0", "b1", "b2"], cost, [Growth(4)])
    assert choice.stored == {"a0", "b1", "b2"}


def test_growth_buys_a_part_of_a_region():
    assert choose(*chain(1, 2, 9, 30), growth=[Growth(8)]).stored == {2}
    ops = [RegionOp(["w"], [f"t{k}"]) for k in range(3)]
    cost = {"w": 8, "t0": 8, "t1": 9, "t2": 10}
    assert choose(ops, list(cost)[1:], cost, [Growth(8)]).stored == {"w", "t0"}
    assert choose(ops, list(cost)[1:], cost, [Growth(17)]).stored == {"w", "t0", "t1"}
    assert choose(ops, list(cost)[1:], cost, [Growth(18)]).stored == {"w", "t0", "t1"}
    assert choose(ops, list(cost)[1:], cost, [Growth(19)]).stored == {"t0", "t1", "t2"}


def test_growth_goes_to_where_it_folds_most():
    ops, _, cost = chain(4, 20, 20, 20)
    ops.append(RegionOp(["a"], ["b"]))
    cost.update(a=4, b=14)
    assert choose(ops, [3, "b"], cost, [Growth(16)]).stored == {3, "a"}
    assert choose(ops, [3, "b"], cost, [Growth(15)]).stored == {0, "b"}


def test_growth_may_have_a_limit_for_each_op():
    ops, demanded, cost = chain(4, 20, 20, 20)
    assert choose(ops, demanded, cost, [Growth(100, 5)]).stored == {0}
    assert choose(ops, demanded, cost, [Growth(100, 6)]).stored == {3}


def test_an_op_is_worth_some_bytes():
    for worth_of_op, stored in ((1, {0}), (2, {1}), (3, {1})):
        assert choose([RegionOp([0], [1], worth_of_op)], [1], {0: 4, 1: 6}).stored == stored


def test_a_weight_that_is_needed_as_it_is_counts_once():
    ops = [RegionOp(["w"], ["t"])]
    assert choose(ops, ["t"], {"w": 8, "t": 8}).stored == {"t"}
    assert choose(ops, ["t", "w"], {"w": 8, "t": 8}).stored == {"w"}


def test_two_results_of_one_weight_are_dearer_than_the_weight():
    ops = [RegionOp(["w"], ["t"]), RegionOp(["w"], ["u"])]
    assert choose(ops, ["t", "u"], {"w": 8, "t": 8, "u": 8}).stored == {"w"}
    assert choose(ops, ["t", "u"], {"w": 8, "t": 4, "u": 4}).stored == {"t", "u"}


def test_an_op_without_inputs_stays_for_nothing():
    assert choose([RegionOp([], ["fill"])], ["fill"], {"fill": 4096}).stored == set()


def test_nothing_is_stored_for_what_nobody_demands():
    assert choose(*chain(4, 4)[:1], [], {0: 4, 1: 4}).stored == set()


# ---------------------------------------------------------------- time


def uniform(n):
    return chain(*[4] * (n + 1))


def falling(n):
    return chain(*range(n + 1, 0, -1))


def rising(n):
    return chain(*range(1, n + 2))


def free(n):
    return chain(*[0] * (n + 1))


def with_weights(n):
    """Every op reads the chain and a weight of its own."""
    ops = [RegionOp([k, f"w{k}"], [k + 1]) for k in range(n)]
    return ops, [n], {**dict.fromkeys(range(n + 1), 4), **{f"w{k}": 4 for k in range(n)}}


def demanded_everywhere(n):
    ops, _, cost = uniform(n)
    return ops, list(range(n + 1)), cost


def separate(n):
    ops = [RegionOp([f"a{k}"], [f"b{k}"]) for k in range(n)]
    names = [f"{side}{k}" for side in "ab" for k in range(n)]
    return ops, [f"b{k}" for k in range(n)], dict.fromkeys(names, 4)


SHAPES = [uniform, falling, rising, free, with_weights, demanded_everywhere, separate]


@pytest.mark.parametrize("make", SHAPES)
def test_steps_grow_linearly(make, count_lines):
    steps = [count_lines(choose, *make(n)) for n in (1_000, 4_000)]
    assert steps[1] <= 4.5 * steps[0]


@pytest.mark.parametrize("make", SHAPES)
def test_steps_grow_linearly_with_growth_to_spend(make, count_lines):
    steps = [count_lines(choose, *make(n), [Growth(n // 4)]) for n in (500, 2_000)]
    assert steps[1] <= 5 * steps[0]


@pytest.mark.parametrize("make", [uniform, falling])
def test_steps_grow_linearly_up_to_20000_ops(make, count_lines):
    steps = [count_lines(choose, *make(n)) for n in (2_000, 20_000)]
    assert steps[1] <= 11 * steps[0]
