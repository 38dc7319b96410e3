"""The rules of rules/constant_propagation.py."""

import numpy as np
import pytest
from certify import certify, graph, refuse
from onnxfold.rules import constant_propagation as rules

F32 = np.float32
NEAR = 1e-5
C, D = F32([[1.5, -2.25, 0.75]]), F32(3.3)

CHAINS = [
    (rules.add_add, "Add(x, c)", "Add(t, d)"),
    (rules.add_add, "Add(c, x)", "Add(d, t)"),
    (rules.add_sub, "Add(x, c)", "Sub(t, d)"),
    (rules.sub_add, "Sub(x, c)", "Add(d, t)"),
    (rules.mul_mul, "Mul(x, c)", "Mul(t, d)"),
]
DIVISIONS = [
    (rules.mul_div, "Mul(x, c)", "Div(t, d)"),
    (rules.div_mul, "Div(x, c)", "Mul(t, d)"),
]


def chain(x, first, second, **more):
    return graph(x, f"t = {first}", f"y = {second}", **more)


@pytest.mark.parametrize(("rule", "first", "second"), CHAINS)
def test_integer_chains(rule, first, second):
    certify(
        rule,
        chain("int64[N,3] x", first, second, c=np.array([[2, -(2**63), 7]]), d=np.array(2**62)),
        chain("int32 x", first, second, c=np.int32(7), d=np.int32([[2], [3]])),
        times=1,
    )
    refuse(
        rule,
        chain("int64[N,3] x", first, second, outputs="t, y", c=1, d=2),
        chain("int64[3] x", first, second, c=np.array([[1], [2]]), d=np.array([1, 2, 3])),
        chain("int64[N] x, int64[N] c", first, second, d=2),
    )


@pytest.mark.parametrize(("rule", "first", "second"), [*CHAINS, *DIVISIONS])
def test_float_chains(rule, first, second):
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 3)).astype(F32)}
    instance = chain("float[N,3] x", first, second, feeds=feeds, sizes={"N": [4]}, c=C, d=D)
    certify(rule, instance, tolerance=NEAR, times=1)
    refuse(rule, instance, level=1)
    refuse(rule, chain("float[N] x, float[N] c", first, second, d=D))


@pytest.mark.parametrize(("rule", "first", "second"), DIVISIONS)
def test_integer_divisions(rule, first, second):
    refuse(rule, chain("int64[N] x", first, second, c=3, d=2))


def test_constants_of_both_operands():
    rule = rules.constants_of_both_operands
    nodes = ("a = Add(x, c)", "b = Add(z, d)", "y = Add(a, b)")
    ints = {"c": np.array([[4], [2**62]]), "d": np.array(2**63 - 1)}
    certify(rule, graph("int64[N,1,3] x, int64[3] z", *nodes, **ints), times=1)
    mixed = ("a = Mul(x, c)", "b = Add(z, d)", "y = Add(a, b)")
    refuse(rule, graph("int64[N,1,3] x, int64[3] z", *mixed, **ints))
    feeds = {"x": F32([[2], [3]]), "z": F32([3, 7, 11])}
    floats = graph("float[N,1] x, float[3] z", *nodes, feeds=feeds, sizes={"N": [2]}, c=C, d=D)
    certify(rule, floats, tolerance=NEAR)
    refuse(rule, floats, level=1)
    refuse(
        rule,
        graph(
            "float[2,2] x, float[2,2] z",
            "m = MatMul(x, z)",
            "a = Add(m, c)",
            "b = Add(z, d)",
            "y = Add(a, b)",
            c=F32(1),
            d=F32(2),
        ),
    )


def test_constant_further_out():
    rule = rules.constant_further_out
    nodes = ("a = Mul(x, c)", "b = Mul(z, a)", "y = Mul(b, d)")
    certify(rule, graph("int32[N,1] x, int32[3] z", *nodes, c=np.int32(3), d=np.int32(7)), times=1)
    feeds = {"x": F32([[2], [3]]), "z": F32([3, 7, 11])}
    floats = graph("float[N,1] x, float[3] z", *nodes, feeds=feeds, sizes={"N": [2]}, c=C, d=D)
    certify(rule, floats, tolerance=NEAR)
    refuse(rule, floats, level=1)
