"""The rules of rules/gathers.py."""

import numpy as np
import pytest
from certify import certify, graph, ints, refuse
from onnxfold.rules import gathers as rules

F32 = np.float32


TABLE = np.arange(24, dtype=F32).reshape(2, 3, 4)


def moved(axis):
    """The two axes of the indices, which stay beside each other, in front of the others."""
    return (axis, axis + 1, *(k for k in range(4) if k - axis not in (0, 1)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_transpose_of_gathered(axis):
    for indices, perms in (
        (np.array(1), [(1, 0)]),
        (np.array([1, 0]), [(0, 2, 1), (2, 0, 1)]),
        (np.array([[1], [0]]), [moved(axis % 3)]),
    ):
        for perm in perms:
            nodes = (f"t = Gather<axis={axis}>(w, i)", f"y = Transpose<perm={list(perm)}>(t)")
            of = f"int64{list(indices.shape)} i" if indices.ndim else "int64 i"
            instance = graph(of, *nodes, w=TABLE, feeds={"i": indices})
            certify(rules.transpose_of_gathered, instance, times=1)
    nodes = ("t = Gather(w, i)", "y = Transpose(t)")
    feeds = {"i": np.array([[1, 0]])}
    refuse(
        rules.transpose_of_gathered,
        graph("int64[1,2] i", *nodes, w=TABLE, feeds=feeds),
        graph("int64[1,2] i, float[2,3,4] w", *nodes, feeds=feeds),
    )


def test_shape_of_gathered():
    def gathered(axis, indices, second, **lists):
        nodes = (f"t = Gather<axis={axis}>(w, i)", "u = " + second, "y = Add(u, x)")
        return graph("float x", *nodes, w=TABLE, i=np.array(indices), **ints(**lists))

    certify(
        rules.shape_of_gathered,
        gathered(0, [0, 1, 1, 0], "Reshape(t, s)", s=[2, 2, 3, 4]),
        gathered(0, [0, 1, 1, 0], "Unsqueeze(t, s)", s=[0]),
        gathered(1, [0, 1, 1, 0], "Reshape(t, s)", s=[2, 2, 2, 2, 2]),
        gathered(-1, [[0, 1], [1, 0]], "Reshape(t, s)", s=[6, 4]),
        gathered(0, 1, "Flatten<axis=0>(t)"),
        gathered(0, [1], "Squeeze(t)"),
    )
    refuse(
        rules.shape_of_gathered,
        gathered(0, [0, 1, 1], "Reshape(t, s)", s=[2, 18]),
        graph(
            "float[2,2] w",
            "t = Gather(w, i)",
            "y = Reshape(t, s)",
            i=np.array([0, 1]),
            **ints(s=[4]),
        ),
    )
