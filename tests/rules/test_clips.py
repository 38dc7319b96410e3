"""The rules of rules/clips.py."""

import itertools

import numpy as np
import pytest
from certify import certify, graph, refuse
from onnxfold.rules import clips as rules

F32, F16 = np.float32, np.float16


def clips(first, second, dtype="float", numpy=F32):
    """Clip after Clip; a bound that is None is not given."""
    named = {}
    nodes = []
    for k, (operand, made, bounds) in enumerate((("x", "t", first), ("t", "y", second))):
        names = []
        for side, bound in zip(("low", "high"), bounds, strict=True):
            names.append("" if bound is None else f"{side}{k}")
            if bound is not None:
                named[f"{side}{k}"] = numpy(bound)
        nodes.append(f"{made} = Clip({', '.join([operand, *names]).rstrip(', ')})")
    return graph(f"{dtype}[N,3] x", *nodes, **named)


BOUNDS = [
    (0, 1),
    (-0.0, 6),
    (2, 3),
    (-3, -1),
    (None, 1),
    (0, None),
    (None, None),
    (-np.inf, np.inf),
]


@pytest.mark.parametrize("first", BOUNDS)
def test_clip_of_clip(first):
    for second in BOUNDS:
        instance = clips(first, second)
        if first == (-3, -1) and second[0] == 0:
            refuse(rules.clip_of_clip, instance)  # the sign of a zero
        elif first == second == (None, None):
            refuse(rules.clip_of_clip, instance)
        else:
            certify(rules.clip_of_clip, instance, times=1)


def test_clip_of_clip_of_other_dtypes():
    for dtype, numpy in (("float16", F16), ("int32", np.int32), ("double", np.float64)):
        for first, second in itertools.product([(0, 5), (None, 3), (-2, None)], repeat=2):
            certify(rules.clip_of_clip, clips(first, second, dtype, numpy))


def test_crossed_clips():
    for crossed in ((5, 3), (np.nan, 1), (0, np.nan)):
        refuse(rules.clip_of_clip, clips(crossed, (0, 1)), clips((0, 1), crossed))
    refuse(
        rules.clip_of_clip,
        graph("float[N] x, float z", "t = Clip(x, z)", "y = Clip(t, c)", c=F32(0)),
        graph("float[N] x", "t = Clip(x, c)", "y = Clip(t, c)", outputs="t, y", c=F32(0)),
    )


def test_relu_and_clip():
    for low, high in ((-2, 3), (1, 2), (0.0, 4), (-0.0, 4), (-np.inf, np.inf)):
        bounds = {"low": F32(low), "high": F32(high)}
        certify(
            rules.relu_of_clip,
            graph("float[N] x", "t = Clip(x, low, high)", "y = Relu(t)", **bounds),
            gone="Relu",
        )
        certify(
            rules.clip_of_relu,
            graph("float[N] x", "t = Relu(x)", "y = Clip(t, low, high)", **bounds),
            gone="Relu",
        )
    certify(rules.clip_of_relu, graph("float[N] x", "t = Relu(x)", "y = Clip(t,, c)", c=F32(6)))
    certify(rules.relu_of_clip, graph("float[N] x", "t = Clip(x,, c)", "y = Relu(t)", c=F32(6)))
    below = {"low": F32(-3), "high": F32(-1)}
    refuse(
        rules.relu_of_clip, graph("float[N] x", "t = Clip(x, low, high)", "y = Relu(t)", **below)
    )
    crossed = {"low": F32(5), "high": F32(3)}
    refuse(
        rules.relu_of_clip,
        graph("float[N] x", "t = Clip(x, low, high)", "y = Relu(t)", **crossed),
    )


def test_clip_nothing():
    certify(rules.clip_nothing, graph("int32[N] x", "t = Clip(x)", "y = Neg(t)"), gone="Clip")
    # a copy of an input in its place would make the file larger
    refuse(rules.clip_nothing, graph("int32[N] x", "y = Clip(x)"))
    refuse(rules.clip_nothing, graph("float[N] x", "y = Clip(x)"))


def test_relu_of_not_negative():
    for op in ("Relu", "Abs", "Sqrt", "Exp"):
        certify(
            rules.relu_of_not_negative,
            graph("float[N,5] x", f"t = {op}(x)", "y = Relu(t)"),
            times=1,
        )
    refuse(
        rules.relu_of_not_negative,
        graph("float[N] x", "t = Neg(x)", "y = Relu(t)"),
        graph("int32[N] x", "t = Abs(x)", "y = Relu(t)"),  # -2^31 stays negative
    )


def test_order_of_int64():
    number = {"low": np.int64(0), "high": np.int64(9)}
    nodes = ("t = Clip(x, low, high)", "y = Clip(t, low, high)")
    refuse(rules.clip_of_clip, graph("int64[N] x", *nodes, **number))
    for rule, nodes in (
        (rules.min_of_max, ("t = Max(x, low)", "y = Min(t, high)")),
        (rules.max_of_min, ("t = Min(x, high)", "y = Max(t, low)")),
        (rules.extreme_of_extreme, ("t = Max(x, low)", "y = Max(t, high)")),
    ):
        refuse(rule, graph("int64[N] x", *nodes, **number))


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes(op):
    certify(rules.extreme_with_itself, graph("float[N] x", f"t = {op}(x, x)", "y = Neg(t)"))
    two = (f"t = {op}(x, c)", f"y = {op}(d, t)")
    certify(
        rules.extreme_of_extreme,
        graph("float[N,3] x", *two, c=F32(2), d=F32([[1, -1, 3]])),
        graph("float[3] x", *two, c=F32([np.inf]), d=F32([[-np.inf]])),
        graph("int32[N] x", *two, c=np.int32(0), d=np.int32([[1], [-1]])),
    )
    refuse(
        rules.extreme_of_extreme,
        graph("float[N,3] x", *two, c=F32(0), d=F32([[1, -1, 3]])),
        graph("float[N,3] x", *two, c=F32(1), d=F32(np.nan)),
        graph("float[N,3] x", *two, c=F32([[1], [2]]), d=F32([1, 2, 3])),
        graph("float[N] x", *two, outputs="t, y", c=F32(2), d=F32(3)),
    )
    other = "Min" if op == "Max" else "Max"
    refuse(
        rules.extreme_of_extreme,
        graph("float[N] x", f"t = {op}(x, c)", f"y = {other}(t, d)", c=F32(2), d=F32(3)),
    )
    again = (f"t = {op}(x, z)", f"y = {op}(t, x)")
    certify(rules.extreme_again, graph("int32[N,1] x, int32[3] z", *again))
    refuse(rules.extreme_again, graph("float[N,1] x, float[3] z", *again))


def test_min_of_max():
    nodes = ("t = Max(x, low)", "y = Min(high, t)")
    certify(
        rules.min_of_max,
        graph("float[N,2] x", *nodes, low=F32(-1), high=F32(1)),
        graph("float[N] x", *nodes, low=F32([5]), high=F32(3)),
        graph("int32[N] x", *nodes, low=np.int32(0), high=np.int32(7)),
        graph("double[N] x", *nodes, low=np.float64(-np.inf), high=np.float64(1)),
        gone="Max Min",
    )
    zero = graph("float[N] x", *nodes, low=F32(0), high=F32(6))
    certify(rules.min_of_max, zero, tolerance=1e-30)
    refuse(rules.min_of_max, zero, level=1)
    refuse(
        rules.min_of_max,
        graph("float[3] x", *nodes, low=F32([1, 2, 3]), high=F32(3)),
        graph("float[3] x", *nodes, low=F32([[1]]), high=F32(3)),
        graph("float[3] x", *nodes, outputs="t, y", low=F32(1), high=F32(3)),
    )


def test_max_of_min():
    nodes = ("t = Min(x, high)", "y = Max(t, low)")
    certify(
        rules.max_of_min,
        graph("float[N,2] x", *nodes, low=F32(-1), high=F32([1])),
        graph("int32 x", *nodes, low=np.int32(0), high=np.int32(7)),
        gone="Max Min",
    )
    refuse(rules.max_of_min, graph("float[N] x", *nodes, low=F32(5), high=F32(3)))
    refuse(rules.max_of_min, graph("float[N] x", *nodes, low=F32(0), high=F32(3)), level=1)


def test_relu_and_extremes():
    certify(
        rules.min_of_relu,
        graph("float[N,2] x", "t = Relu(x)", "y = Min(t, c)", c=F32(6)),
        graph("float[N,2] x", "t = Relu(x)", "y = Min(c, t)", c=F32([-1])),
        gone="Relu",
    )
    refuse(
        rules.min_of_relu,
        graph("float[N] x", "t = Relu(x)", "y = Min(t, c)", c=F32(0)),
        graph("float[N] x", "t = Relu(x)", "y = Min(t, c)", c=F32([[1]])),
    )
    certify(
        rules.max_of_relu,
        graph("float[N,1] x", "t = Relu(x)", "y = Max(t, c)", c=F32([1, 2])),
        gone="Relu",
    )
    for c in (0, -0.0, -1, np.nan):
        refuse(rules.max_of_relu, graph("float[N] x", "t = Relu(x)", "y = Max(t, c)", c=F32(c)))
