"""The rules of rules/expected_value.py."""

import numpy as np
from certify import certify, graph, ints, random, refuse
from onnxfold.rules import expected_value as rules

from onnxfold import optimize

NEAR = 1e-5
NODES = ("t = Transpose<perm=[0,2,1,3]>(x)", "s = Softmax<axis=1>(t)")
PLAIN = "y = Conv<kernel_shape=[1,1], strides=[1,1], pads=[0,0,0,0], group=1>(s, w)"
SIDES = np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1)


def test_expected_value():
    certify(
        rules.expected_value,
        graph("float[N,4,6,A] x", *NODES, PLAIN, w=SIDES),
        graph("float[2,3,6,5] x", *NODES, "y = Conv(s, w)", w=random(1, 6, 1, 1), opset=13),
        tolerance=NEAR,
        times=1,
        gone="Conv",
    )
    refuse(
        rules.expected_value,
        graph("float[N,4,6,A] x", *NODES, PLAIN, w=random(2, 6, 1, 1)),
        graph("float[N,4,6,A] x", *NODES, "y = Conv(s, w, b)", w=SIDES, b=random(1)),
        graph("float[N,4,6,9] x", *NODES, "y = Conv<strides=[2,1]>(s, w)", w=SIDES),
        graph("float[N,4,6,9] x", *NODES, "y = Conv<pads=[1,0,0,0]>(s, w)", w=SIDES),
        graph("float[N,4,6,9] x", *NODES, "y = Conv(s, w)", w=random(1, 6, 2, 1)),
        graph("float[N,4,6,9] x", *NODES, "y = Conv<group=2>(s, w)", w=random(2, 3, 1, 1)),
        graph("float[N,4,6,A] x", NODES[0], "s = Softmax<axis=2>(t)", PLAIN, w=SIDES),
        graph("float[N,4,6,A] x", *NODES, PLAIN, w=SIDES, opset=12),
    )


def test_no_transpose_is_left_before_the_sides_are_reshaped():
    model = graph(
        "float[1,24,5] x",
        "r = Reshape(x, split)",
        NODES[0].replace("(x)", "(r)"),
        NODES[1],
        "v = Conv(s, w)",
        "y = Reshape(v, sides)",
        w=SIDES,
        **ints(split=[1, 4, 6, 5], sides=[1, 4, 5]),
    )
    optimized = optimize(model.model, level=2)
    ops = [n.op_type for n in optimized.graph.node]
    assert ops == ["Reshape", "Softmax", "MatMul", "Reshape"]
