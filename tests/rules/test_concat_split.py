"""The rules of rules/concat_split.py."""

import numpy as np
from certify import certify, graph, ints, refuse
from onnxfold.rules import concat_split as rules


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


def test_concat_of_split():
    two = rules.concat_of_split[1]
    certify(
        two,
        graph("float[4,N] x", "a, b = Split<axis=0>(x)", "y = Concat<axis=-2>(a, b)"),
        graph("float[4] x", "a, b = Split(x, s)", "y = Concat<axis=0>(a, b)", **ints(s=[1, 3])),
        graph("float[4] x", "a, b = Split<split=[1,3]>(x)", "y = Concat<axis=0>(a, b)", opset=11),
        gone="Split Concat",
    )
    certify(
        rules.concat_of_split[2],
        graph("float[6] x", "a, b, c = Split(x)", "y = Concat<axis=0>(a, b, c)"),
    )
    refuse(
        two,
        graph("float[4,4] x", "a, b = Split<axis=0>(x)", "y = Concat<axis=0>(b, a)"),
        graph("float[4,4] x", "a, b = Split<axis=0>(x)", "y = Concat<axis=1>(a, b)"),
        graph("float[6] x", "a, b, c = Split(x)", "y = Concat<axis=0>(a, b)"),
        graph("float[4] x", "a, b = Split(x)", "y = Concat<axis=0>(a, a)"),
    )


def test_split_of_sequence():
    two = ("s = SplitToSequence<axis=1>(x, c)", "a = SequenceAt(s, i)", "y = SequenceAt(s, j)")
    places = {"i": np.array(0), "j": np.array(1)}
    rule = rules.split_of_sequence[0]
    certify(
        rule,
        graph("float[N,5] x", *two, outputs="a, y", **places, **ints(c=[2, 3])),
        graph("float[N,5] x", *two, outputs="y, a", **places, c=np.array(3)),
        gone="SequenceAt SplitToSequence",
        times=1,
    )
    refuse(
        rule,
        graph("float[N,5] x", *two, outputs="a, y", **places, **ints(c=[2, 2, 1])),
        graph("float[5,N] x", *two, outputs="a, y", **places, c=np.array(3)),
        graph("float[N,5] x", *two[:2], outputs="a", i=np.array(0), **ints(c=[2, 3])),
    )
    certify(
        rules.split_of_sequence[1],
        graph(
            "float[5] x",
            "s = SplitToSequence<axis=-1>(x, c)",
            "a = SequenceAt(s, i)",
            "b = SequenceAt(s, j)",
            "y = SequenceAt(s, k)",
            outputs="y, a, b",
            **places,
            k=np.array(2),
            c=np.array(2),
        ),
    )
