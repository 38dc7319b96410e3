"""Sizes about which more is known because a node would fail otherwise."""

import numpy as np
import pytest
from symbolic_check import floats, rewrite

WINDOW = "<float[2,1,3] w = {1,2,3,4,5,6}, int64[1] one = {1}, int64[1] two = {2}, int64[1] n = {3}"


@pytest.mark.parametrize("where", ["unused", "branch"])
def test_a_node_that_may_not_run_says_nothing(where):
    convolved = "z = Exp(x)"
    if where == "branch":
        convolved = """z = If(k) <then_branch = t () => (float[B,2,M] p) {
            p = Conv<strides=[2]>(x, w) }, else_branch = e () => (float[B,2,M] p) {
            p = Concat<axis=1>(x, x) }>"""
    unused = "c = Conv<strides=[2]>(x, w)" if where == "unused" else ""
    model = rewrite(
        f"g (float[B,1,L] x, bool k) => (int64[1] y, float[B,P,M] z) {WINDOW}> "
        f"{{ l = Shape<start=2>(x) a = Sub(l, n) {convolved} {unused}"
        "    g = Less(l, n) h = Cast<to=7>(g) i = Mul(h, two)"
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
