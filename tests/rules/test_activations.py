"""The rules of rules/activations.py."""

import math

import numpy as np
import pytest
from certify import certify, graph, refuse
from onnxfold.rules import activations as rules

from onnxfold.options import Options

NEAR = 1e-5
F = np.float32
ROOT = {"r": F(math.sqrt(2)), "one": F(1), "half": F(0.5)}
ORDERS = (
    ("u = Mul(x, p)", "y = Mul(u, half)"),
    ("u = Mul(half, p)", "y = Mul(u, x)"),
    ("u = Mul(half, x)", "y = Mul(p, u)"),
)


@pytest.mark.parametrize("order", ORDERS)
def test_gelu(order):
    nodes = ("e = Erf(s)", "p = Add(e, one)", *order)
    certify(
        rules.gelu,
        graph("float[N,3] x", "s = Div(x, r)", *nodes, opset=20, **ROOT),
        graph("float[N,3] x", "s = Mul(x, r)", *nodes, opset=20, **{**ROOT, "r": F(0.70710678)}),
        graph("float[N,3] x", "s = Div(x, r)", *nodes, opset=20, **{**ROOT, "r": F([1.4142135])}),
        tolerance=NEAR,
        times=1,
        gone="Erf",
    )
    refuse(
        rules.gelu,
        graph("float[N,3] x", "s = Div(x, r)", *nodes, opset=17, **ROOT),
        graph("float[N,3] x", "s = Mul(x, r)", *nodes, opset=20, **ROOT),
        graph("float[N,3] x", "s = Div(r, x)", *nodes, opset=20, **ROOT),
        graph("float[N,3] x", "s = Div(x, r)", *nodes, opset=20, **{**ROOT, "one": F(2)}),
        graph("float[N,3] x", "s = Div(x, r)", *nodes, opset=20, **{**ROOT, "half": F(0.4)}),
        graph("float[3] x", "s = Div(x, r)", *nodes, opset=20, **{**ROOT, "one": F([[1]])}),
    )


TANH = {
    "c": F(0.044715),
    "k": F(math.sqrt(2 / math.pi)),
    "one": F(1),
    "half": F(0.5),
    "three": F(3),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "inner",
    [
        ("q = Pow(x, three)", "w = Mul(c, q)", "s = Add(x, w)", "i = Mul(k, s)"),
        ("v = Mul(x, x)", "q = Mul(x, v)", "w = Mul(c, q)", "s = Add(x, w)", "i = Mul(k, s)"),
        ("v = Mul(x, x)", "q = Mul(v, c)", "w = Add(one, q)", "s = Mul(x, k)", "i = Mul(s, w)"),
        ("v = Mul(x, c)", "q = Mul(v, x)", "w = Add(one, q)", "s = Mul(x, k)", "i = Mul(s, w)"),
    ],
)
def test_gelu_tanh(order, inner):
    nodes = (*inner, "e = Tanh(i)", "p = Add(e, one)", *order)
    model = graph(
        "float[2,3] x", *nodes, opset=20, feeds={"x": F([[1, -2, 3], [0, 4, -5]])}, **TANH
    )
    certify(rules.gelu_tanh, model, tolerance=NEAR, times=1, gone="Tanh")
    other = {**TANH, "k": F(0.7)}
    refuse(rules.gelu_tanh, graph("float[N,3] x", *nodes, opset=20, **other))
    refuse(rules.gelu_tanh, graph("float[N,3] x", *nodes, opset=17, **TANH))


def test_sigmoid():
    start = ("n = Neg(x)", "e = Exp(n)", "a = Add(e, one)")
    certify(
        rules.sigmoid,
        graph("float[N,3] x", *start, "y = Reciprocal(a)", one=F(1)),
        graph("float[N,3] x", *start, "y = Div(one, a)", one=F(1)),
        tolerance=NEAR,
        times=1,
        gone="Exp",
    )
    refuse(
        rules.sigmoid,
        graph("float[N,3] x", *start, "y = Reciprocal(a)", one=F(2)),
        graph("float[N,3] x", *start, "y = Div(a, one)", one=F(1)),
        graph("float[3] x", *start, "y = Div(one, a)", one=F([[1]])),
        graph("float[N,3] x", "e = Exp(x)", "a = Add(e, one)", "y = Reciprocal(a)", one=F(1)),
    )


def _matches(rule, model):
    """Asserts that a rule whose result onnxruntime cannot run here fires at all."""
    import onnx_ir as ir

    from onnxfold.passes.simplify import Simplify
    from onnxfold.rewrite import RuleSet

    step = Simplify([RuleSet("one", (rule,))], options=Options(level=2))
    step(ir.from_proto(model.model))
    assert step.report.total and not step.report.rejected


def test_swish():
    _matches(rules.swish, graph("float[N,3] x", "s = Sigmoid(x)", "y = Mul(x, s)", opset=24))
    nodes = ("t = Mul(x, k)", "s = Sigmoid(t)", "y = Mul(s, x)")
    _matches(rules.swish_scaled, graph("float[N,3] x", *nodes, opset=24, k=F(1.702)))
    refuse(
        rules.swish,
        graph("float[N,3] x", "s = Sigmoid(x)", "y = Mul(x, s)", opset=23),
        graph("float[N,3] x, float[N,3] z", "s = Sigmoid(x)", "y = Mul(z, s)", opset=24),
    )
    refuse(rules.swish_scaled, graph("float[N,3] x", *nodes, opset=24, k=F([1, 2, 3])))


HARD = {"three": F(3), "zero": F(0), "six": F(6), "sixth": F(1 / 6)}


@pytest.mark.parametrize(
    "clip",
    [
        ("k = Clip(a, zero, six)",),
        ("l = Max(a, zero)", "k = Min(l, six)"),
        ("l = Relu(a)", "k = Min(six, l)"),
    ],
)
def test_hard_sigmoid_and_swish(clip):
    start = ("float[N,3] x", "a = Add(x, three)", *clip)
    certify(rules.hard_sigmoid, graph(*start, "y = Div(k, six)", **HARD), tolerance=NEAR)
    certify(rules.hard_sigmoid, graph(*start, "y = Mul(sixth, k)", **HARD), tolerance=NEAR)
    swish = rules.hard_swish_spelled_out
    certify(swish, graph(*start, "t = Mul(k, x)", "y = Div(t, six)", **HARD), tolerance=NEAR)
    certify(swish, graph(*start, "t = Mul(x, k)", "y = Mul(t, sixth)", **HARD), tolerance=NEAR)
    certify(swish, graph(*start, "t = Div(x, six)", "y = Mul(t, k)", **HARD), tolerance=NEAR)
    wrong = {**HARD, "three": F(2.9)}
    refuse(rules.hard_sigmoid, graph(*start, "y = Div(k, six)", **wrong))
    refuse(rules.hard_sigmoid, graph(*start, "y = Mul(six, k)", **HARD))
    refuse(swish, graph(*start, "t = Mul(k, x)", "y = Div(t, six)", **wrong))
    refuse(swish, graph(*start, "t = Mul(k, x)", "y = Div(t, six)", opset=13, **HARD))


def test_hard_sigmoid_of_line():
    nodes = ("t = Mul(x, c)", "a = Add(t, d)", "y = Clip(a, lo, hi)")
    more = {"c": F(0.2), "d": F(0.4), "lo": F(0), "hi": F(1)}
    certify(
        rules.hard_sigmoid_of_line, graph("float[N,3] x", *nodes, **more), tolerance=NEAR, times=1
    )
    refuse(
        rules.hard_sigmoid_of_line,
        graph("float[N,3] x", *nodes, **{**more, "hi": F(2)}),
        graph("float[N,3] x", *nodes, **{**more, "d": F([1, 2, 3])}),
        graph("int32[N,3] x", *nodes, c=np.int32(2), d=np.int32(1), lo=np.int32(0), hi=np.int32(1)),
    )
    nodes = ("s = HardSigmoid<alpha=0.16666667, beta=0.5>(x)", "y = Mul(s, x)")
    certify(rules.hard_swish, graph("float[N,3] x", *nodes), tolerance=NEAR, times=1)
    refuse(rules.hard_swish, graph("float[N,3] x", "s = HardSigmoid(x)", "y = Mul(s, x)"))


def test_softplus_and_its_kind():
    moderate = {"x": F([[0.5, -3], [10, 0]])}
    nodes = ("e = Exp(x)", "a = Add(one, e)", "y = Log(a)")
    certify(
        rules.softplus,
        graph("float[2,2] x", *nodes, one=F(1), feeds=moderate),
        tolerance=NEAR,
        times=1,
    )
    refuse(rules.softplus, graph("float[2,2] x", *nodes, one=F(2)))
    certify(
        rules.mish,
        graph("float[N,3] x", "s = Softplus(x)", "t = Tanh(s)", "y = Mul(t, x)", opset=18),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.mish,
        graph("float[N,3] x", "s = Softplus(x)", "t = Tanh(s)", "y = Mul(t, x)", opset=17),
        graph(
            "float[N,3] x, float[N,3] z",
            "s = Softplus(x)",
            "t = Tanh(s)",
            "y = Mul(t, z)",
            opset=18,
        ),
    )
    nodes = ("a = Abs(x)", "b = Add(a, one)", "y = Div(x, b)")
    certify(rules.softsign, graph("float[N,3] x", *nodes, one=F(1)), tolerance=NEAR, times=1)
    refuse(rules.softsign, graph("float[N,3] x", *nodes, one=F(2)))


def test_leaks():
    where = ("g = Greater(x, z)", "m = Mul(x, c)", "y = Where(g, x, m)")
    certify(
        rules.leaky_relu,
        graph("float[N,3] x", *where, z=F(0), c=F(0.1)),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.leaky_relu,
        graph("float[N,3] x", *where, z=F(1), c=F(0.1)),
        graph("float[N,3] x", *where, z=F(0), c=F([1, 2, 3])),
        graph("float[N,3] x", *where[:2], "y = Where(g, m, x)", z=F(0), c=F(0.1)),
    )
    largest = ("m = Mul(x, c)", "y = Max(m, x)")
    certify(
        rules.leaky_relu_by_max, graph("float[N,3] x", *largest, c=F(0.1)), tolerance=NEAR, times=1
    )
    refuse(
        rules.leaky_relu_by_max,
        graph("float[N,3] x", *largest, c=F(1.5)),
        graph("float[N,3] x", *largest, c=F(-0.5)),
    )
    slopes = ("p = Relu(x)", "n = Neg(x)", "q = Relu(n)", "s = Mul(c, q)", "y = Sub(p, s)")
    certify(
        rules.parametric_relu,
        graph("float[N,3] x", *slopes, c=F([0.1, 0.2, 0.3])),
        graph("float[N,3] x", *slopes, c=F(0.1)),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.parametric_relu,
        graph("float[3] x", *slopes, c=F([[0.1, 0.2, 0.3]])),
        graph("float[1,3] x", *slopes, c=F([[0.1] * 3] * 2)),
    )
    nodes = (
        "g = Greater(x, z)",
        "e = Exp(x)",
        "s = Sub(e, one)",
        "m = Mul(c, s)",
        "y = Where(g, x, m)",
    )
    certify(
        rules.elu,
        graph("float[N,3] x", *nodes, z=F(0), one=F(1), c=F(0.5)),
        tolerance=NEAR,
        times=1,
    )
    refuse(rules.elu, graph("float[N,3] x", *nodes, z=F(0), one=F(2), c=F(0.5)))


def test_double_stays_spelled_out():
    """onnxruntime has kernels for what it is spelled out with, and none for the whole."""
    spelled_out = ("a = Exp(x)", "b = Add(a, one)", "y = Log(b)")
    refuse(rules.softplus, graph("double[N] x", *spelled_out, one=np.float64(1)))
