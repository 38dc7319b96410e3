"""The rules of rules/logic.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import logic as rules


def test_where_not():
    turned = ("n = Not(c)", "y = Where(n, x, z)")
    certify(rules.where_not, graph("bool[N,1] c, int64[3] x, int64 z", *turned), gone="Not")
    certify(
        rules.where_not,
        graph("bool[N,1] c", *turned, x=np.float32([1, np.nan, -np.inf]), z=np.float32(0)),
    )
    certify(rules.where_not, graph("bool[N,1] c, float[3] x, float z", *turned), tolerance=1e-30)
    refuse(rules.where_not, graph("bool[N,1] c, float[3] x", *turned, z=np.float32(0)), level=1)
    refuse(rules.where_not, graph("bool[N] c, int32[N] x", "y = Where(c, x, x)"))


def test_nots():
    two = ("a = Not(x)", "b = Not(z)")
    bools = "bool[N,1] x, bool[3] z"
    certify(rules.and_of_nots, graph(bools, *two, "y = And(a, b)"))
    refuse(rules.and_of_nots, graph(bools, "a = Not(x)", "y = And(a, z)"))


def test_not_of_greater():
    nodes = ("t = Greater(x, z)", "y = Not(t)")
    certify(
        rules.not_of_greater,
        graph("int64[N,1] x, int64[3] z", *nodes),
        graph("int32 x, int32[N] z", *nodes),
        gone="Not",
    )
    refuse(rules.not_of_greater, graph("float[N] x, float[N] z", *nodes))
