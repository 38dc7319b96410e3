"""The rules of rules/normalizations.py."""

import numpy as np
import pytest
from certify import certify, graph, random, refuse
from onnxfold.rules import normalizations as rules

NEAR = 1e-5
F = np.float32


def mean(source, target, opset, axes="-1"):
    """A ReduceMean as the opset has it."""
    if opset < 18:
        return f"{target} = ReduceMean<axes=[{axes}]>({source})"
    return f"{target} = ReduceMean({source}, a)"


QUOTIENTS = (
    ("n = Div(d, r)",),
    ("i = Reciprocal(r)", "n = Mul(i, d)"),
    ("i = Div(one, r)", "n = Mul(d, i)"),
)


def layer(opset, quotient=QUOTIENTS[0], square="q = Pow(d, two)", axes="-1"):
    return (
        mean("x", "m", opset, axes),
        "d = Sub(x, m)",
        square,
        mean("q", "v", opset, axes),
        "p = Add(v, e)",
        "r = Sqrt(p)",
        *quotient,
    )


def constants(opset, axes=(-1,)):
    more = {"a": list(axes)} if opset >= 18 else {}
    return {**more, "e": F(1e-3), "two": F(2), "one": F(1), "w": random(4), "b": random(4, seed=1)}


FEEDS = {"x": random(2, 3, 4, seed=5)}


@pytest.mark.parametrize("opset", [17, 20])
def test_layer_normalization(opset):
    last = ("s = Mul(w, n)", "y = Add(s, b)")
    more = constants(opset)
    certify(
        rules.layer_normalization,
        *(
            graph("float[2,3,4] x", *layer(opset, q), *last, opset=opset, feeds=FEEDS, **more)
            for q in QUOTIENTS
        ),
        graph(
            "float[2,3,4] x",
            *layer(opset, square="q = Mul(d, d)"),
            *last,
            opset=opset,
            feeds=FEEDS,
            **more,
        ),
        tolerance=NEAR,
        times=1,
        gone="Sqrt",
    )
    both = {**constants(opset, (1, 2)), "w": random(3, 4), "b": random(3, 4)}
    certify(
        rules.layer_normalization,
        graph("float[2,3,4] x", *layer(opset, axes="1,2"), *last, opset=opset, feeds=FEEDS, **both),
        tolerance=NEAR,
    )
    certify(
        rules.layer_normalization_without_bias,
        graph(
            "float[2,3,4] x",
            *layer(opset),
            last[0],
            "y = Relu(s)",
            opset=opset,
            feeds=FEEDS,
            **more,
        ),
        tolerance=NEAR,
        times=1,
    )
    middle = {**constants(opset, (1,)), "w": random(3, 1), "b": random(3, 1)}
    refuse(
        rules.layer_normalization,
        graph("float[2,3,4] x", *layer(opset, axes="1"), *last, opset=opset, **middle),
        graph("float[2,4,4] x", *layer(opset), *last, opset=opset, **{**more, "w": random(4, 4)}),
        graph("float[2,3,4] x", *layer(opset), *last, opset=opset, **{**more, "w": random(1)}),
        graph("float[2,3,4] x", *layer(opset), *last, opset=opset, **{**more, "two": F(3)}),
        graph(
            "float[2,3,4] x, float[2,3,4] z",
            *(n.replace("Sub(x", "Sub(z") for n in layer(opset)),
            *last,
            opset=opset,
            **more,
        ),
    )


def test_layer_normalization_needs_opset_17():
    more = constants(16)
    refuse(
        rules.layer_normalization,
        graph("float[2,3,4] x", *layer(16), "s = Mul(w, n)", "y = Add(s, b)", opset=16, **more),
    )


def test_layer_normalization_bias():
    nodes = ("t = LayerNormalization(x, w)", "y = Add(t, b)")
    more = {"w": random(4), "b": random(4, seed=1)}
    certify(
        rules.layer_normalization_bias,
        graph("float[2,3,4] x", *nodes, feeds=FEEDS, **more),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.layer_normalization_bias,
        graph("float[2,3,4] x", *nodes, w=random(4), b=random(3, 4)),
        graph("float[2,3,4] x", "t = LayerNormalization(x, w, b)", nodes[1], **more),
    )


def rms(quotient=QUOTIENTS[0], square="q = Pow(x, two)"):
    return (
        square,
        "v = ReduceMean(q, a)",
        "p = Add(v, e)",
        "r = Sqrt(p)",
        *(n.replace("d", "x") for n in quotient),
    )


def test_rms_normalization():
    more = {k: v for k, v in constants(23).items() if k != "b"}
    scaled = "y = Mul(n, w)"
    squared = rms(square="q = Mul(x, x)")
    certify(
        rules.rms_normalization,
        *(
            graph("float[2,3,4] x", *rms(q), scaled, opset=23, feeds=FEEDS, **more)
            for q in QUOTIENTS
        ),
        graph("float[2,3,4] x", *squared, scaled, opset=23, feeds=FEEDS, **more),
        tolerance=NEAR,
        times=1,
        gone="Sqrt",
    )
    refuse(
        rules.rms_normalization,
        graph("float[2,3,4] x", *rms(), scaled, opset=22, **more),
        graph("float[2,4,4] x", *rms(), scaled, opset=23, **{**more, "a": [1]}),
        graph("float[2,3,4] x", *rms(), scaled, opset=23, **{**more, "w": F(2)}),
        graph("float[2,3,4] x", *rms(), scaled, opset=23, **{**more, "e": random(4)}),
    )


def test_rms_normalization_widened():
    nodes = ("f = Cast<to=1>(x)", *(n.replace("(x", "(f").replace("x)", "f)") for n in rms()))
    last = ("h = Cast<to=10>(n)", "y = Mul(w, h)")
    half = random(4, dtype=np.float16)
    more = {k: v for k, v in constants(23).items() if k != "b"}
    more["w"] = half
    feeds = {"x": FEEDS["x"].astype(np.float16)}
    certify(
        rules.rms_normalization_widened,
        graph("float16[2,3,4] x", *nodes, *last, opset=23, feeds=feeds, **more),
        tolerance=1e-3,
        times=1,
        gone="Sqrt",
    )
    kept = ("h = Cast<to=1>(n)", "y = Mul(w, h)")
    refuse(
        rules.rms_normalization_widened,
        graph("float16[2,3,4] x", *nodes, *kept, opset=23, **{**more, "w": random(4)}),
        graph("float16[2,3,4] x", *nodes, *last, opset=22, **more),
    )


def test_group_normalization():
    nodes = (
        "g = Reshape(x, s)",
        "i = InstanceNormalization<epsilon=0.001>(g, o, z)",
        "f = Shape(x)",
        "h = Reshape(i, f)",
        "p = Mul(h, w)",
        "y = Add(p, b)",
    )
    more = {
        "s": [0, 2, -1],
        "o": np.ones(2, F),
        "z": np.zeros(2, F),
        "w": random(4, 1, 1),
        "b": random(1, 4, 1, 1, seed=1),
    }
    feeds = {"x": random(2, 4, 3, 5)}
    model = graph("float[2,4,3,5] x", *nodes, opset=21, feeds=feeds, **more)
    certify(rules.group_normalization[0], model, tolerance=NEAR, times=1)
    told = [n.replace("Reshape(i, f)", "Reshape(i, k)") for n in nodes if "Shape(x)" not in n[:12]]
    fixed = graph("float[2,4,3,5] x", *told, opset=21, feeds=feeds, k=[2, 4, 3, 5], **more)
    certify(rules.group_normalization[1], fixed, tolerance=NEAR, times=1)
    other = graph("float[2,4,3,5] x", *told, opset=21, k=[2, 4, 5, 3], **more)
    refuse(rules.group_normalization[1], other)
    refuse(
        rules.group_normalization[0],
        graph("float[2,4,3,5] x", *nodes, opset=20, **more),
        graph("float[2,4,4,4] x", *nodes, opset=21, **{**more, "w": random(4)}),
        graph("float[2,4,3,5] x", *nodes, opset=21, **{**more, "o": F([1, 2])}),
        graph("float[2,4,3,5] x", *nodes, opset=21, **{**more, "s": [4, 2, -1]}),
    )


MODERATE = {"x": F(np.random.default_rng(0).standard_normal((2, 3, 4)))}


def test_reductions():
    nodes = ("s = ReduceSum<keepdims=0>(x, a)", "y = Div(s, n)")
    rule = rules.mean
    for opset in (13, 17, 18):
        certify(
            rule,
            graph("float[2,3,4] x", *nodes, opset=opset, a=[0, -1], n=F(8), feeds=MODERATE),
            graph(
                "float[N,3,4] x",
                "s = ReduceSum(x, a)",
                "y = Div(s, n)",
                opset=opset,
                a=[1],
                n=F([[3]]),
                sizes={"N": (1, 2)},
            ),
            tolerance=NEAR,
            times=1,
        )
        refuse(
            rule,
            graph("float[2,3,4] x", *nodes, opset=opset, a=[0, -1], n=F(12)),
            graph("float[N,3,4] x", *nodes, opset=opset, a=[0], n=F(2)),
            graph("float[2,3,4] x", *nodes, opset=opset, a=[0, 1, 2], n=F([24])),
            graph("int32[2,3,4] x", *nodes, opset=opset, a=[0], n=np.int32(2)),
        )
    squares = ("q = Mul(x, x)", "s = ReduceSum(q, a)", "y = Sqrt(s)")
    certify(
        rules.norm_of_squares,
        graph("float[2,3,4] x", *squares, opset=18, a=[1], feeds=MODERATE),
        tolerance=NEAR,
    )
    certify(
        rules.norm,
        graph(
            "float[2,3,4] x",
            "s = ReduceSumSquare(x, a)",
            "y = Sqrt(s)",
            opset=18,
            a=[1],
            feeds=MODERATE,
        ),
        tolerance=NEAR,
    )
    refuse(rules.norm_of_squares, graph("float[2,3,4] x", *squares, opset=17, a=[1]))
    refuse(
        rules.norm,
        graph("float[2,3,4] x", "s = ReduceSumSquare(x)", "y = Exp(s)", opset=18),
    )


def test_normalize():
    certify(
        rules.normalize,
        graph("float[2,3,4] x", "s = ReduceL2<axes=[1]>(x)", "y = Div(x, s)", feeds=MODERATE),
        graph(
            "float[2,3,4] x",
            "s = ReduceL2(x, a)",
            "y = Div(x, s)",
            opset=18,
            a=[-1],
            feeds=MODERATE,
        ),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.normalize,
        graph("float[2,3,4] x", "s = ReduceL2<axes=[1,2]>(x)", "y = Div(x, s)"),
        graph(
            "float[2,3,4] x",
            "s = ReduceL2<axes=[1]>(x)",
            "t = Max(s, e)",
            "y = Div(x, t)",
            e=F(1e-12),
        ),
        graph("float[3,3] x", "s = ReduceL2<axes=[1], keepdims=0>(x)", "y = Div(x, s)"),
    )
