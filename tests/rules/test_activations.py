"""The rules of rules/activations.py."""

import math

import numpy as np
import pytest
from certify import certify, graph, random, refuse
from onnxfold.rules import activations as rules

from onnxfold import optimize

NEAR = 1e-5
F = np.float32
ORDERS = (
    ("u = Mul(x, p)", "y = Mul(u, half)"),
    ("u = Mul(half, p)", "y = Mul(u, x)"),
    ("u = Mul(half, x)", "y = Mul(p, u)"),
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


BOUNDS = {"three": F(3), "zero": F(0), "six": F(6), "sixth": F(1 / 6)}


@pytest.mark.parametrize(
    ("k", "clip", "opset"),
    [
        (0, "k = Clip(a, zero, six)", 17),
        (0, "k = Clip(a, zero, six)", 11),
        (1, "k = Clip<min = 0.0, max = 6.0>(a)", 10),
        (1, "k = Clip<min = 0.0, max = 6.0>(a)", 7),
    ],
)
def test_hard_sigmoid_and_swish(k, clip, opset):
    def model(*end, inputs="float[N,3] x", **constants):
        constants = {**BOUNDS, **constants}
        return graph(inputs, "a = Add(x, three)", clip, *end, opset=opset, **constants)

    certify(
        rules.hard_sigmoid[k],
        model("y = Div(k, six)"),
        model("y = Mul(sixth, k)"),
        model("y = Mul(k, sixth)", three=F([3.0])),
        tolerance=NEAR,
        times=1,
        gone="Clip",
    )
    certify(
        rules.hard_swish[k],
        model("t = Mul(x, k)", "y = Div(t, six)"),
        model("t = Mul(k, x)", "y = Mul(t, sixth)", three=F([3.0])),
        tolerance=NEAR,
        times=1,
        gone="Clip Add Div",
    )
    for rule, end in (
        (rules.hard_sigmoid[k], ("y = Div(k, six)",)),
        (rules.hard_swish[k], ("t = Mul(x, k)", "y = Div(t, six)")),
    ):
        refuse(
            rule,
            model(*end, three=F(2.9)),
            model(*end, three=F([[[3.0]]])),
            model(*end, six=F(5)),
            model(*end[:-1], end[-1].replace("Div", "Sub")),
        )
    refuse(
        rules.hard_swish[k],
        model("t = Mul(z, k)", "y = Div(t, six)", inputs="float[N,3] x, float[N,3] z"),
    )


def test_only_float32_has_kernels():
    nodes = ("a = Add(x, three)", "k = Clip(a, zero, six)", "y = Div(k, six)")
    for name, dtype in (("double", np.float64), ("float16", np.float16)):
        constants = {key: dtype(value) for key, value in BOUNDS.items()}
        refuse(rules.hard_sigmoid[0], graph(f"{name}[N] x", *nodes, **constants))


def test_a_hard_swish_comes_before_the_weight_of_the_next_convolution():
    """The sixth belongs to the activation, and the model's default rules see it first."""
    model = graph(
        "float[1,4,5,5] x",
        "p = Conv(x, w)",
        "a = Add(p, three)",
        "k = Clip(a, zero, six)",
        "t = Mul(p, k)",
        "h = Div(t, six)",
        "y = Conv(h, w)",
        w=random(4, 4, 1, 1),
        **BOUNDS,
    )
    optimized = optimize(model.model, level=2)
    assert [n.op_type for n in optimized.graph.node] == ["Conv", "HardSigmoid", "Mul", "Conv"]
