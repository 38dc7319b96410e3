"""The rules of rules/affine.py."""

import numpy as np
from certify import certify, graph, random, refuse
from onnxfold.rules import affine as rules

from onnxfold import optimize

NEAR = 1e-5
F = np.float32
PAIR = ("t = Mul(x, c)", "y = Add(t, d)")


def test_scale_and_shift():
    certify(
        rules.scale_and_shift,
        graph("float[N,3,4,5] x", *PAIR, c=F(0.3), d=F([-0.5])),
        graph("float[N,3,4,5] x", *PAIR, c=F([0.3]), d=random(3, 1, 1)),
        graph("float[N,3,H,W] x", *PAIR, c=random(1, 3, 1, 1), d=random(3, 1, 1, seed=1)),
        graph("float[N,3,H,W] x", *PAIR, c=F(2), d=F(1), opset=9),
        tolerance=NEAR,
        times=1,
        gone="Mul Add",
    )
    refuse(
        rules.scale_and_shift,
        graph("float[N,C,4,5] x", *PAIR, c=F(0.3), d=F(1)),  # how many channels
        graph("float[N,3] x", *PAIR, c=F(0.3), d=F(1)),  # of vectors two passes are faster
        graph("float[N,3,4,5] x", *PAIR, c=random(5), d=F(1)),
        graph("float[N,3,4,5] x", *PAIR, c=F(0.3), d=random(4, 1)),
        graph("float[N,1,4,5] x", *PAIR, c=F(0.3), d=random(3, 1, 1)),
        graph("double[N,3,4,5] x", *PAIR, c=np.float64(0.3), d=np.float64(1)),
        graph("float[N,3,4,5] x", *PAIR, outputs="t, y", c=F(0.3), d=F(1)),
    )


def test_a_scale_and_a_shift_go_into_a_convolution_that_takes_both():
    weights = {"c": F(0.3), "d": F([0.5]), "w": random(2, 3, 1, 1), "v": random(2, 3, 3, 3)}
    inputs = "float[1,3,6,6] x"
    plain = ("z = Conv(y, w)",)
    refuse(rules.scale_and_shift, graph(inputs, *PAIR, *plain, outputs="z", **weights))
    optimized = optimize(graph(inputs, *PAIR, *plain, outputs="z", **weights).model, level=2)
    assert [n.op_type for n in optimized.graph.node] == ["Conv"]
    certify(
        rules.scale_and_shift,
        # the padding is not shifted
        graph(inputs, *PAIR, "z = Conv<pads=[1,1,1,1]>(y, v)", outputs="z", **weights),
        graph(inputs, *PAIR, *plain, outputs="y, z", **weights),
        graph(inputs, *PAIR, "z = Conv(y, w)", "u = Relu(y)", outputs="z, u", **weights),
        tolerance=NEAR,
        times=1,
    )


def test_scale_plus_one():
    gated = ("t = Mul(x, s)", "y = Add(x, t)")
    certify(
        rules.scale_plus_one,
        graph("float[N,3,4,5] x, float[N,3,1,1] s", *gated),
        graph("float[N,3,4,5] x, float[1,1,1,1] s", "t = Mul(s, x)", "y = Add(t, x)", opset=7),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rules.scale_plus_one,
        graph("float[N,3,4,5] x, float[N,3,4,5] s", *gated),
        graph("float[N,3,4,1] x, float[N,3,1,1] s", *gated),
        graph("float[N,3,4,5] x, float[M,3,1,1] s", *gated),
        graph("float[N,3,4,5] x, float[N,3,1,1] s", *gated, outputs="t, y"),
        graph("float[N,3,4,5] x, float[N,3,4,5] z, float[N,3,1,1] s", "t = Mul(z, s)", gated[1]),
    )
