"""The rules of rules/concat_split.py."""

import numpy as np
from certify import certify, graph, ints, refuse
from onnxfold.rules import concat_split as rules

import onnxfold


def test_concat_of_concat():
    certify(
        rules.concat_of_concat,
        graph(
            "float[N,2] x, float[M,2] z", "t = Concat<axis=0>(x, z)", "y = Concat<axis=-2>(z, t, x)"
        ),
        graph("float[N] x", "t = Concat<axis=0>(x)", "y = Concat<axis=0>(t, x)"),
        times=1,
    )
    refuse(
        rules.concat_of_concat,
        graph("float[2,2] x, float[2,4] z", "t = Concat<axis=1>(x, x)", "y = Concat<axis=0>(z, t)"),
        graph("float[2] x", "t = Concat<axis=0>(x, x)", "y = Concat<axis=0>(x, t)", outputs="t, y"),
    )


def test_concat_with_nothing():
    """Exporters pad a sequence by the columns that it lacks, even if it lacks none."""
    certify(
        rules.concat_with_nothing,
        graph(
            "float[N,3] x",
            "n = Shape<end=1>(x)",
            "s = Concat<axis=0>(n, z)",
            "e = ConstantOfShape(s)",
            "m = Neg(e)",
            "y = Concat<axis=-1>(x, m, x)",
            **ints(z=[0]),
        ),
        graph("int64[2,3] x", "y = Concat<axis=1>(e, x)", e=np.zeros((2, 0), np.int64)),
        times=1,
    )
    refuse(
        rules.concat_with_nothing,
        graph("float[0] x", "y = Concat<axis=0>(x)"),
        graph("float[N,3] x", "y = Concat<axis=1>(x, e)", e=np.zeros((0, 2), np.float32)),
        graph("float[N] x, float[3] z", "y = Concat<axis=0>(z, x)"),
    )


TAKEN = ("s = SplitToSequence<axis=1>(x, c)", "a = SequenceAt(s, i)", "y = SequenceAt(s, j)")
PLACES = {"i": np.array(0), "j": np.array(-1)}


def test_split_of_sequence():
    rule = rules.split_of_sequence
    dropping = (TAKEN[0].replace("=1>", "=1, keepdims=0>"), *TAKEN[1:])
    certify(rule, graph("float[N,2] x", *dropping, outputs="a, y", **PLACES, **ints(c=[1, 1])))
    certify(
        rule,
        graph("float[N,5] x", *TAKEN, outputs="a, y", **PLACES, **ints(c=[2, 3])),
        graph("float[N,5] x", *TAKEN, outputs="y, a", **PLACES, c=np.array(3)),
        graph("float[N,5] x", *TAKEN, outputs="a, y", **PLACES, **ints(c=[2, 2, 1])),
        gone="SequenceAt SplitToSequence",
        times=2,
    )
    certify(rule, graph("float[N,5] x", *TAKEN[:2], outputs="a", i=np.array(0), **ints(c=[2, 3])))
    refuse(
        rule,
        graph("float[5,N] x", *TAKEN, outputs="a, y", **PLACES, c=np.array(3)),
        graph("float[N,5] x, int64 k", TAKEN[0], "y = SequenceAt(s, k)", **ints(c=[2, 3])),
        graph("float[N,5] x", *TAKEN[:2], "y = SequenceLength(s)", i=np.array(0), **ints(c=[5])),
        graph("float[N,5] x", TAKEN[0], "y = SequenceAt(s, i)", i=np.array(2), **ints(c=[2, 3])),
        graph("float[N,2] x", *dropping, outputs="a, y", **PLACES, c=np.array(1)),
    )
    parts = [f"p{k} = SequenceAt(s, k{k})" for k in range(3)]
    places = {f"k{k}": np.array(k) for k in range(3)}
    start = ("float[5] x", "s = SplitToSequence<axis=-1>(x, c)")
    certify(
        rule,
        graph(*start, *parts, outputs="p2, p0, p1", **places, c=np.array(2)),
        gone="SequenceAt",
    )


def test_the_parts_come_from_one_split():
    instance = graph("float[N,5] x", *TAKEN, outputs="a, y", **PLACES, **ints(c=[2, 3]))
    optimized = onnxfold.optimize(instance.model)
    assert [node.op_type for node in optimized.graph.node] == ["Split"]
