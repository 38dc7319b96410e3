"""The rules of rules/transposes.py."""

import numpy as np
from certify import certify, graph, ints, refuse
from onnxfold.rules import transposes as rules

F32 = np.float32


def test_transpose_of_transpose():
    certify(
        rules.transpose_of_transpose,
        graph("float[A,B,3] x", "t = Transpose<perm=[1,2,0]>(x)", "y = Transpose<perm=[0,2,1]>(t)"),
        graph("float[A,B] x", "t = Transpose(x)", "y = Transpose(t)"),
        graph("float x", "t = Transpose(x)", "y = Transpose(t)"),
        graph("float16[A,2] x", "t = Transpose(x)", "y = Transpose<perm=[1,0]>(t)"),
        times=1,
    )
    refuse(
        rules.transpose_of_transpose,
        graph("float[A,B] x", "t = Transpose(x)", "s = Relu(t)", "y = Transpose(s)"),
    )


def test_transposed_ones():
    certify(
        rules.reshape_of_transposed_ones,
        graph(
            "float[N,1,3] x", "t = Transpose<perm=[1,0,2]>(x)", "y = Reshape(t, d)", **ints(d=[-1])
        ),
        graph(
            "float[1,3,1] x", "t = Transpose<perm=[1,2,0]>(x)", "y = Squeeze(t, d)", **ints(d=[1])
        ),
        gone="Transpose",
    )
    refuse(
        rules.reshape_of_transposed_ones,
        graph(
            "float[N,2,3] x", "t = Transpose<perm=[1,0,2]>(x)", "y = Reshape(t, d)", **ints(d=[-1])
        ),
        graph(
            "float[N,1,M] x", "t = Transpose<perm=[2,1,0]>(x)", "y = Reshape(t, d)", **ints(d=[-1])
        ),
    )
    certify(
        rules.transpose_of_reshaped_ones,
        graph("float[6] x", "t = Reshape(x, c)", "y = Transpose<perm=[1,0]>(t)", **ints(c=[1, 6])),
        graph("float[N] x", "t = Unsqueeze(x, c)", "y = Transpose(t)", **ints(c=[1])),
        gone="Transpose",
    )
    refuse(
        rules.transpose_of_reshaped_ones,
        graph("float[6] x", "t = Reshape(x, c)", "y = Transpose(t)", **ints(c=[2, 3])),
    )


def test_between_reshapes():
    """What is written for the product of four-dimensional queries and keys."""
    nodes = (
        "n = Shape<start=2, end=3>(x)",
        "front = Shape<start=0, end=2>(x)",
        "rows = Concat<axis=0>(rest, n, four)",
        "a = Reshape(x, rows)",
        "b = Transpose<perm=[0,2,1]>(a)",
        "whole = Concat<axis=0>(front, four, n)",
        "y = Reshape(b, whole)",
    )
    more = {**ints(rest=[-1], four=[4]), "sizes": {"N": (1, 3), "M": (2, 7)}}
    operand = "float[N,3,M,4] x"
    certify(rules.transpose_between_reshapes, graph(operand, *nodes, **more))
    certify(
        rules.transpose_between_reshapes,
        graph(
            "float[2,3,5,4] x",
            *nodes[3:5],
            "y = Reshape(b, whole)",
            **ints(rows=[6, 5, 4], whole=[2, 3, 4, 5]),
        ),
        gone="Reshape",
    )
    refuse(
        rules.transpose_between_reshapes,
        graph(operand, *nodes[:4], "b = Transpose<perm=[1,0,2]>(a)", *nodes[5:], **more),
        graph(operand, *nodes[:5], "whole = Concat<axis=0>(front, n, four)", nodes[6], **more),
        graph(
            "float[2,3,5,4] x",
            *nodes[3:5],
            "y = Reshape(b, whole)",
            **ints(rows=[6, 4, 5], whole=[2, 3, 4, 5]),
        ),
    )


def test_reshape_between_transposes():
    """Heads are split off behind a transpose, and joined in front of one."""

    def around(operand, p, shape, q, reshape="Reshape"):
        return graph(
            f"float[{operand}] x",
            f"t = Transpose<perm={p}>(x)",
            f"r = {reshape}(t, shape)",
            f"y = Transpose<perm={q}>(r)",
            **ints(shape=shape),
            sizes={"N": (2, 0, 1), "M": (3, 1)},
        )

    certify(
        rules.reshape_between_transposes,
        around("2,12,5", [0, 2, 1], [2, 5, 4, 3], [0, 2, 3, 1]),
        around("2,4,3,6", [0, 3, 1, 2], [2, 2, 3, 12], [0, 3, 1, 2]),
        around("N,12,5", [0, 2, 1], [0, 5, 4, 3], [0, 2, 3, 1]),
        around("N,12,5", [0, 2, 1], [-1, 5, 1, 4, 3], [2, 0, 3, 4, 1]),
        around("N,4,3,5", [0, 3, 1, 2], [0, 5, 12], [0, 2, 1]),
        around("0,12,5", [0, 2, 1], [0, 5, 4, 3], [0, 2, 3, 1]),
        around("6,1,5", [2, 1, 0], [5, 2, 3], [1, 2, 0]),
        around("2,5", [1, 0], [1], [1, 2, 0], "Unsqueeze"),
        gone="Transpose",
        times=1,
    )
    refuse(
        rules.reshape_between_transposes,
        around("2,12,5", [0, 2, 1], [2, 5, 4, 3], [0, 3, 2, 1]),
        around("2,12,5", [0, 2, 1], [10, 4, 3], [1, 2, 0]),
        around("2,12,5", [0, 2, 1], [2, 10, 6], [0, 2, 1]),
        around("2,6,4", [0, 2, 1], [2, 3, 8], [0, 2, 1]),
        around("N,3,M", [0, 2, 1], [-1, 3, 1], [1, 0, 2]),
    )
