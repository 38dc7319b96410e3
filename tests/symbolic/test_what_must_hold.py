"""Sizes about which more is known because a node would fail otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from symbolic_check import floats, rewrite

WINDOW = "<float[2,1,3] w = {1,2,3,4,5,6}, int64[1] one = {1}, int64[1] two = {2}, int64[1] n = {3}"
LENGTH = """l = Shape<start=2>(x)  a = Sub(l, n)  b = Div(a, two)  f = Add(b, one)
            c = Conv<strides=[2]>(x, w)  s = Shape<start=2>(c)"""


def test_windows_fit():
    """The formula rounds towards 0, the window's places are rounded down."""
    model = rewrite(
        f"g (float[B,1,L] x) => (int64[1] y, float[B,2,M] z) {WINDOW}> "
        f"{{ {LENGTH}  z = Exp(c)  y = Sub(f, s) }}"
    )
    assert model.ops.keys() == {"Conv", "Exp"}
    model.check(*({"x": floats(2, 1, length)} for length in (3, 4, 7)))


def test_lengths_of_windows_on_windows():
    """The second one is known to be the size itself, no 0 and no -1, once the first is known."""
    model = rewrite(
        f"g (float[B,1,L] x) => (int64[1] y, float[B,1,M] z) {WINDOW}, float[1,2,2] v = "
        f"{{1,1,1,1}}> {{ {LENGTH}"
        "    q = Shape(c)  r = Reshape(c, q)  z = Conv(r, v)  e = Shape<start=2>(z)"
        "    d = Sub(f, one)  y = Sub(d, e) }"
    )
    assert model.ops.keys() == {"Conv"}
    model.check(*({"x": floats(2, 1, length)} for length in (5, 6, 9)))


@pytest.mark.parametrize("where", ["unused", "branch"])
def test_a_node_that_may_not_run_says_nothing(where):
    convolved = "z = Exp(x)"
    if where == "branch":
        convolved = """z = If(k) <then_branch = t () => (float[B,2,M] p) {
            p = Conv<strides=[2]>(x, w) }, else_branch = e () => (float[B,2,M] p) {
            p = Concat<axis=1>(x, x) }>"""
    length = LENGTH.split("c =")[0]
    unused = "c = Conv<strides=[2]>(x, w)" if where == "unused" else ""
    model = rewrite(
        f"g (float[B,1,L] x, bool k) => (int64[1] y, float[B,P,M] z) {WINDOW}> "
        f"{{ {length} {convolved} {unused} g = Less(l, n) h = Cast<to=7>(g) i = Mul(h, two)"
        "    j = Sub(a, i)  y = Div(j, two) }"
    )
    assert model.ops["Div"] == 1
    for size in (1, 2, 3) if where == "branch" else (3,):
        model.check({"x": floats(2, 1, size), "k": np.array(False)})


ROWS = "<int64[1] less = {-1}, int64[1] four = {4}>"
JOINED = "l = Shape<start=2, end=3>(x)  t = Concat<axis=0>(less, l, four)  r = Reshape(x, t)"


@pytest.mark.parametrize("added", ["float[1]", "float[Q,1]", "float[2,1]"])
def test_a_sequence_may_be_empty(added):
    model = rewrite(
        f"g (float[B,2,L,4] x, {added} m) => (float[P,Q,4] z, int64[1] y) {ROWS}"
        f"{{ {JOINED}  z = Add(r, m)  k = Shape<start=1, end=2>(r)  y = Sub(k, l) }}"
    )
    assert model.ops["Sub"] == 1
    shape = (1,) if added == "float[1]" else (2, 1)
    model.check(*({"x": floats(2, 2, n, 4), "m": floats(*shape)} for n in (0, 2)))


def test_sizes_that_have_nothing_in_common():
    """Whether 4 * B is 0 does not depend on L."""
    model = rewrite(
        """g (float[B,4,L,3] x) => (float[P,Q,R] z, int64[1] y) <int64[1] four = {4},
            int64[1] less = {-1}, int64[1] three = {3}> {
            l = Shape<start=2, end=3>(x)  t = Concat<axis=0>(less, l, three)
            r = Reshape<allowzero=1>(x, t)  u = Concat<axis=0>(less, four, l, three)
            p = Reshape<allowzero=1>(r, u)  z = Exp(r)
            b = Shape<start=0, end=1>(x)  k = Shape<start=0, end=1>(p)  y = Sub(k, b) }"""
    )
    assert "Sub" not in model.ops
    model.check(*({"x": floats(b, 4, n, 3)} for b, n in ((0, 2), (2, 0), (2, 3))))


@pytest.mark.parametrize("left", [-1, 6])
def test_what_a_size_is_left_for_has_elements(left):
    """Beside an empty batch a -1 means nothing, so the batch of the second Reshape is not empty."""
    model = rewrite(
        "g (float[N,8,3] w, float[N,8,A] x) => (float[N,4,P] y, float[N,2,4,A] z) "
        f"<int64[3] u = {{0,4,{left}}}, int64[1] two = {{2}}, int64[1] four = {{4}}>"
        """{ y = Reshape(w, u)  n = Shape<start=0, end=1>(x)  a = Shape<start=2>(x)
             t = Concat<axis=0>(n, two, four, a)  z = Reshape(x, t) }"""
    )
    assert model.ops == ({"Reshape": 2} if left == -1 else {"Reshape": 2, "Shape": 2, "Concat": 1})
    for batch, size in ((1, 5), (3, 1)) + (((0, 5),) if left > 0 else ()):
        model.check({"w": floats(batch, 8, 3), "x": floats(batch, 8, size)})
