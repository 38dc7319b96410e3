"""The rules of rules/arithmetic.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import arithmetic as rules

F32 = np.float32
TINY = 1e-6


def test_negatives_in_sums():
    both = "float[N,1] x, float[3] z"
    certify(
        rules.add_negative,
        graph(both, "t = Neg(z)", "y = Add(x, t)"),
        graph(both, "t = Neg(x)", "y = Add(t, z)"),
        graph("int64[N] x, int64[N] z", "t = Neg(x)", "y = Add(t, z)"),
        gone="Neg",
    )
    refuse(rules.add_negative, graph(both, "t = Neg(z)", "s = Abs(t)", "y = Add(x, s)"))


def test_divisions():
    both = "float[N,1] x, float[3] z"
    feeds = {"x": F32([[2], [3]]), "z": F32([3, 7, 11])}
    sizes = {"N": [2]}
    certify(
        rules.multiply_by_reciprocal,
        graph(both, "t = Reciprocal(z)", "y = Mul(x, t)", feeds=feeds, sizes=sizes),
        tolerance=TINY,
    )
    refuse(rules.multiply_by_reciprocal, graph(both, "t = Reciprocal(z)", "y = Mul(x, t)"), level=1)
    divided = ("t = Div(c, z)", "y = Mul(x, t)")
    certify(
        rules.multiply_by_one_over,
        graph(both, *divided, feeds=feeds, sizes=sizes, c=F32(1)),
        tolerance=TINY,
    )
    refuse(
        rules.multiply_by_one_over,
        graph("int64[N] x, int64[N] z", *divided, c=1),
        graph(both, *divided, c=F32(2)),
        graph(both, *divided, c=F32([[1], [1]])),
    )
