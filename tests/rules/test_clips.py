"""The rules of rules/clips.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import clips as rules

F32 = np.float32


def test_order_of_int64():
    bounds = {"low": np.int64(0), "high": np.int64(9)}
    for rule, nodes in (
        (rules.min_of_max, ("t = Max(x, low)", "y = Min(t, high)")),
        (rules.max_of_min, ("t = Min(x, high)", "y = Max(t, low)")),
    ):
        refuse(rule, graph("int64[N] x", *nodes, **bounds))


def test_clip_of_relu():
    nodes = ("t = Relu(x)", "y = Clip(t, low, high)")
    for low, high in ((1e-6, 3), (1, 2), (5, 3), (1e-40, np.inf), (2, np.nan)):
        bounds = {"low": F32(low), "high": F32(high)}
        certify(rules.clip_of_relu, graph("float[N] x", *nodes, **bounds), gone="Relu")
    certify(
        rules.clip_of_relu,
        graph("float[N] x", "t = Relu(x)", "y = Clip(t, low)", low=F32(1e-6)),
        gone="Relu",
    )
    refuse(
        rules.clip_of_relu,
        graph("float[N] x", *nodes, low=F32(-1), high=F32(3)),
        graph("float[N] x", *nodes, low=F32(0), high=F32(3)),
        graph("int64[N] x", *nodes, low=np.int64(1), high=np.int64(3), opset=14),
        graph("float[N] x", *nodes, outputs="t, y", low=F32(1), high=F32(3)),
    )


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
