"""Compare expressions in normal form with arithmetic on numbers."""

import numpy as np
import pytest
from fact_check import Evaluation
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.ir.symbolic import Algebra, Expr, Number

OPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floor_div": lambda a, b: a // b,
    "trunc_div": lambda a, b: int(np.trunc(a / b)),
    "minimum": min,
    "maximum": max,
    "equal": lambda a, b: int(a == b),
    "less": lambda a, b: int(a < b),
}


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=400, deadline=None)
@given(
    steps=STEPS,
    sizes=st.tuples(*[st.integers(0, 6)] * 3),
    constants=st.tuples(*[st.integers(-3, 5)] * 2),
)
def test_expressions_agree_with_numbers(steps, sizes, constants):
    algebra = Algebra()
    evaluation = Evaluation(algebra)
    assert all(map(evaluation.holds, map(algebra.symbol, "abc"), sizes))
    known: list[int] = [*sizes, *constants]
    symbolic: list[Number] = [*(algebra.symbol(n) for n in "abc"), *constants]
    for op, i, j in steps:
        a = known[i % len(known)]
        b = known[j % len(known)]
        if op in ("floor_div", "trunc_div") and b == 0:
            continue
        if abs(a) > 1 << 20 or abs(b) > 1 << 20:
            continue
        known.append(OPS[op](a, b))
        left = symbolic[i % len(symbolic)]
        right = symbolic[j % len(symbolic)]
        symbolic.append(getattr(algebra, op)(left, right))
        assert evaluation.value(symbolic[-1]) == known[-1]
        assert algebra.low(symbolic[-1]) <= known[-1] <= algebra.high(symbolic[-1])
    for index, number in evaluation.atoms.items():
        assert algebra.atoms[index].low <= number <= algebra.atoms[index].high


def test_equal_expressions_are_equal():
    algebra = Algebra()
    b = algebra.symbol("B")
    s = algebra.symbol("S")
    twice = algebra.mul(algebra.add(b, s), 2)
    assert algebra.add(algebra.add(b, b), algebra.add(s, s)) == twice
    assert algebra.trunc_div(twice, 2) == algebra.add(b, s)
    assert algebra.trunc_div(algebra.mul(twice, s), s) == twice
    halves = [algebra.floor_div(b, 2) for _ in range(2)]
    assert halves[0] == halves[1]
    assert algebra.floor_div(algebra.add(b, 4), 2) == algebra.add(halves[0], 2)
    assert algebra.less(b, 0) == 0 and algebra.less(algebra.mul(b, -1), 1) == 1
    assert isinstance(algebra.equal(b, 0), Expr)


@pytest.mark.parametrize("divisor", [0, -2])
def test_repeated_divisions_are_merged_only_for_positive_divisors(divisor):
    algebra = Algebra()
    size = algebra.symbol("N")
    algebra.raise_lower_bounds({size: 0})
    quotient = algebra.floor_div(algebra.floor_div(size, divisor), 3)
    assert isinstance(quotient, Expr)
    assert divisor == 0 or algebra.low(quotient) < 0
    merged = algebra.floor_div(algebra.floor_div(size, 2), 3)
    assert merged == algebra.floor_div(size, 6)


def test_a_division_by_0_is_not_evaluated():
    """The division may be in a branch that does not run, so it is not an error."""
    algebra = Algebra()
    size = algebra.symbol("N")
    for divide in (algebra.floor_div, algebra.trunc_div):
        assert isinstance(divide(size, 0), Expr)
