"""The rules of rules/broadcasts.py."""

import numpy as np
import pytest
from certify import certify, graph, ints, refuse
from onnxfold.rules import broadcasts as rules

F32 = np.float32


def test_expand_before_binary():
    rule = rules.expand_before_binary
    large = "float[1,3] x, float[N,3] z"
    certify(
        rule,
        graph("float[1,3] x, float[4,3] z", "t = Expand(x, s)", "y = Sub(t, z)", **ints(s=[4, 3])),
        graph("float[4,1] x, float[1,3] z", "t = Expand(x, s)", "y = Sub(t, z)", **ints(s=[4, 1])),
        graph("float x, float[2] z", "t = Expand(x, s)", "y = Div(t, z)", **ints(s=[2])),
        gone="Expand",
    )
    certify(
        rule,
        graph("float[1,3] x, float[4,3] z", "t = Expand(x, s)", "y = Sub(z, t)", **ints(s=[4, 3])),
    )
    refuse(
        rule,
        graph(large, "t = Expand(x, s)", "y = Sub(t, z)", **ints(s=[3, 3])),
        graph("float[1,4] x, float[1,4] z", "t = Expand(x, s)", "y = Mul(t, z)", **ints(s=[3, 4])),
        graph("float[3] x, float[3] z", "t = Expand(x, s)", "y = Mul(t, z)", **ints(s=[1, 3])),
        graph("float[1] x, float[3] z", "t = Expand(x, s)", "y = Pow(z, t)", **ints(s=[3])),
    )


@pytest.mark.parametrize(("spread", "by"), [("Expand", [4, 3]), ("Tile", [4, 2])])
def test_constants_before_they_spread(spread, by):
    c = F32([[0.5, -2, 3]])
    one, two = rules.constants_before_they_spread

    def spread_out(last, inputs="int64[2] s", **more):
        feeds = ints(s=by)
        return graph(inputs, f"t = {spread}(c, s)", f"y = {last}", feeds=feeds, **more)

    certify(one, spread_out("Exp(t)", c=c), times=1)
    certify(two, spread_out("Sub(t, d)", c=c, d=F32(2)), times=1)
    certify(two, spread_out("Sub(d, t)", c=c, d=F32([3])), times=1)
    refuse(
        two,
        spread_out("Sub(t, d)", c=c, d=F32([[1], [2], [3], [4]])),
        spread_out("Sub(t, d)", "int64[2] s, float[1,3] c", d=F32(2)),
    )
    refuse(one, spread_out("Exp(t)", outputs="t, y", c=c), spread_out("Log(t)", c=c))


def test_expand_before_where():
    spread = ("t = Expand(w, s)", "y = Where(c, o, t)")
    for values in ({"o": np.int64(1), "w": np.array([0])}, {"o": F32(1), "w": F32([0])}):
        certify(rules.expand_before_where, graph("bool[N,3] c", *spread, **ints(s=[3]), **values))
    certify(  # the sign of a zero depends on what repeats along the last axis
        rules.expand_before_where,
        graph("bool[N,3] c, float[1] w, float[3] o", *spread, **ints(s=[3])),
        tolerance=1e-30,
    )
    refuse(
        rules.expand_before_where,
        graph("bool[1] c, float o, float w", *spread, **ints(s=[3])),
    )
