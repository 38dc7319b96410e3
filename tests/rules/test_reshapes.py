"""The rules of rules/reshapes.py."""

import pytest
from certify import certify, graph, ints, refuse
from onnxfold.rules import reshapes as rules


def of_any_rank(*nodes, **lists):
    """A graph whose x has no known rank; what it makes has none either, so show its shape."""
    return graph(
        "float[6] v, int64[K] k",
        "x = Reshape(v, k)",
        *nodes,
        "s = Shape(y)",
        sizes={"K": [3]},
        feeds=ints(k=[1, 2, 3]),
        **ints(**lists),
    )


def test_there_and_back():
    certify(
        rules.shape_there_and_back,
        graph(
            "float[2,3] x", "t = Reshape(x, c)", "y = Reshape(t, d)", **ints(c=[3, 2], d=[2, -1])
        ),
        graph("float[N,3] x", "t = Unsqueeze(x, c)", "y = Squeeze(t, c)", **ints(c=[1])),
        graph("float[2,3] x", "t = Flatten<axis=0>(x)", "y = Reshape(t, d)", **ints(d=[2, 3])),
        gone="Reshape Squeeze Unsqueeze Flatten",
    )
    refuse(
        rules.shape_there_and_back,
        graph("float[2,3] x", "t = Reshape(x, c)", "y = Reshape(t, d)", **ints(c=[6], d=[3, 2])),
        graph("float[N,M] x", "t = Reshape(x, c)", "y = Reshape(t, d)", **ints(c=[-1], d=[2, -1])),
    )


@pytest.mark.parametrize(
    ("first", "second"), [([1], [0, 2]), ([-1], [-1, 0]), ([0, 3], [1]), ([2], [2]), ([0], [-1])]
)
def test_axes_one_after_the_other(first, second):
    certify(
        rules.unsqueeze_of_unsqueeze,
        graph(
            "float[N,3] x", "t = Unsqueeze(x, c)", "y = Unsqueeze(t, d)", **ints(c=first, d=second)
        ),
        times=1,
    )
    certify(
        rules.unsqueeze_of_unsqueeze,
        graph(
            "float[N,3] x",
            f"t = Unsqueeze<axes={[a % (2 + len(first)) for a in first]}>(x)",
            f"y = Unsqueeze<axes={[a % (2 + len(first + second)) for a in second]}>(t)",
            opset=12,
        ),
    )


def test_axes_added_without_rank():
    certify(
        rules.unsqueeze_of_unsqueeze,
        of_any_rank("t = Unsqueeze(x, c)", "y = Unsqueeze(t, d)", c=[0], d=[2]),
    )
    refuse(
        rules.unsqueeze_of_unsqueeze,
        of_any_rank("t = Unsqueeze(x, c)", "y = Unsqueeze(t, d)", c=[-1], d=[0]),
        graph(
            "float[2] x",
            "t = Unsqueeze(x, c)",
            "y = Unsqueeze(t, d)",
            outputs="t, y",
            **ints(c=[0], d=[2]),
        ),
    )


def reshaped(x, first, second, **more):
    return graph(x, f"t = {first}", f"y = {second}", **more)


def test_reshape_of_reshaped():
    rule = rules.reshape_of_reshaped
    certify(
        rule,
        reshaped("float[N,6] x", "Reshape(x, c)", "Reshape(t, d)", **ints(c=[0, 2, 3], d=[0, -1])),
        reshaped("float[4,6] x", "Reshape(x, c)", "Reshape(t, d)", **ints(c=[6, -1], d=[0, 2, 2])),
        reshaped("float[N,M] x", "Unsqueeze(x, c)", "Reshape(t, d)", **ints(c=[2], d=[0, -1, 1])),
        reshaped("float[N,6] x", "Flatten<axis=1>(x)", "Reshape(t, d)", **ints(d=[3, -1])),
    )
    refuse(
        rule,
        reshaped(
            "float[N,6] x", "Reshape(x, c)", "Reshape(t, d)", **ints(c=[3, -1, 2], d=[0, 0, 2])
        ),
        graph(
            "float[N,6] x",
            "t = Reshape(x, c)",
            "y = Reshape<allowzero=1>(t, d)",
            **ints(c=[-1], d=[0, 6]),
        ),
    )


def test_reshape_without_zeros():
    rule = rules.reshape_without_zeros
    nodes = ("t = Reshape(x, s)", "y = Reshape(t, d)")
    feeds = ints(s=[3, 2])
    certify(rule, graph("float[6] x, int64[2] s", *nodes, feeds=feeds, **ints(d=[2, -1])))
    refuse(rule, graph("float[6] x, int64[2] s", *nodes, feeds=feeds, **ints(d=[0, -1])))


def test_changes_of_shape():
    certify(
        rules.changes_of_shape,
        reshaped("float[N,6] x", "Reshape(x, c)", "Unsqueeze(t, d)", **ints(c=[-1, 3], d=[1])),
        reshaped("float[N,1,6] x", "Squeeze(x, c)", "Unsqueeze(t, d)", **ints(c=[1], d=[0])),
        reshaped("float[2,1,6] x", "Squeeze(x, c)", "Flatten(t)", **ints(c=[1])),
        reshaped("float x", "Unsqueeze(x, c)", "Unsqueeze(t, d)", **ints(c=[0], d=[0])),
        times=1,
    )
    refuse(
        rules.changes_of_shape,
        reshaped("float[N,1,M] x", "Squeeze(x, c)", "Unsqueeze(t, d)", **ints(c=[1], d=[0])),
        reshaped("float[N,M,6] x", "Reshape(x, c)", "Unsqueeze(t, d)", **ints(c=[0, -1, 3], d=[1])),
        reshaped("float[0,1,N] x", "Squeeze(x, c)", "Unsqueeze(t, d)", **ints(c=[1], d=[0])),
    )
