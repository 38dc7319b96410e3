"""The rules of rules/softmax.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import softmax as rules

NEAR = 1e-5
F = np.float32
MODERATE = {"x": F(np.random.default_rng(0).standard_normal((2, 3, 4)))}


def test_softmax():
    direct = ("e = Exp(x)", "s = ReduceSum(e, a)", "y = Div(e, s)")
    certify(
        rules.softmax,
        graph("float[2,3,4] x", *direct, a=[-1], feeds=MODERATE),
        graph("float[2,3,4] x", *direct, a=[1], feeds=MODERATE),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.softmax,
        graph("float[2,3,4] x", *direct, a=[1, 2]),
        graph(
            "float[3,3] x", "e = Exp(x)", "s = ReduceSum<keepdims=0>(e, a)", "y = Div(e, s)", a=[1]
        ),
        graph("float[2,3,4] x", "e = Exp(x)", "s = ReduceSum(e)", "y = Div(e, s)"),
    )
    shifted = ("d = Sub(x, m)", *(n.replace("Exp(x)", "Exp(d)") for n in direct))
    certify(
        rules.softmax_shifted,
        graph("float[2,3,4] x", "m = ReduceMax<axes=[-1]>(x)", *shifted, a=[2], feeds=MODERATE),
        graph("float[2,3,4] x", "m = ReduceMax(x, a)", *shifted, a=[2], opset=18, feeds=MODERATE),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.softmax_shifted,
        graph("float[2,3,4] x", "m = ReduceMax<axes=[1]>(x)", *shifted, a=[2]),
    )


def test_log_softmax():
    """log_softmax_axis_default: the axis stays, also the default one of each opset."""
    certify(
        rules.log_softmax,
        graph("float[2,3,4] x", "s = Softmax<axis=0>(x)", "y = Log(s)", feeds=MODERATE),
        graph("float[2,3,4] x", "s = Softmax(x)", "y = Log(s)", feeds=MODERATE),
        graph("float[2,3,4] x", "s = Softmax(x)", "y = Log(s)", opset=11, feeds=MODERATE),
        tolerance=NEAR,
        times=1,
    )
    refuse(rules.log_softmax, graph("float[2,3,4] x", "s = Softmax(x)", "y = Exp(s)"))
    nodes = ("s = ReduceLogSumExp<axes=[1]>(x)", "y = Sub(x, s)")
    certify(
        rules.log_softmax_by_sum,
        graph("float[2,3,4] x", *nodes, feeds=MODERATE),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.log_softmax_by_sum,
        graph("float[2,3,4] x", "s = ReduceLogSumExp(x)", "y = Sub(x, s)"),
        graph("float[2,3,4] x", nodes[0], "y = Sub(s, x)"),
    )
