"""The rules of rules/gathers.py."""

import numpy as np
from certify import certify, graph, ints, refuse
from onnxfold.rules import gathers as rules

F32 = np.float32


TABLE = np.arange(24, dtype=F32).reshape(2, 3, 4)


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
