"""Test that facts also hold in special cases, such as sizes of 0 and 1 and negative numbers."""

import numpy as np
import pytest
from fact_check import FactCheck
from symbolic_check import floats, inputs, parse, rewrite


def test_shapes_for_which_onnx_and_onnxruntime_differ():
    """onnx and onnxruntime differ in default attributes of STFT and in the NonZero of a scalar."""
    text = """
        g (float[2,12,1] w, float x, float[N] v) => (float[a,b,c,d] y)
        <int64 n = {4}, int64 e = {1}>
        { y = STFT(w, e, "", n)  z = STFT<onesided=0>(w, e, "", n)
          p = NonZero(x)  q = NonZero(v) }"""
    check = FactCheck(parse(text, 20))
    for count in (0, 3):
        feeds = {"w": floats(2, 12, 1), "x": np.array(3, np.float32), "v": floats(count)}
        assert check.check(feeds) > 9


@pytest.mark.parametrize("declared", ["float", *(f"float[{n},3]" for n in "25Na")])
@pytest.mark.parametrize("turns", ["n", "two"])
def test_a_loop_without_iterations_has_the_declared_shape(declared, turns):
    text = f"""
        g (float[N,3] x, int64 n) => (int64[a] y) <bool c = {{1}}, int64 two = {{2}}>
        {{ o, t = Loop({turns}, c, x) <body = b (int64 i, bool k, {declared} s)
              => (bool k2, {declared} s2, {declared} r) {{
                  k2 = Identity(k)  s2 = Neg(s)  r = Exp(s) }}>
          y = Shape(t) }}"""
    model = parse(text, 20)
    for value in (*(body := model.graph.node[0].attribute[0].g).input, *body.output):
        if declared == "float" and value.name in ("s", "s2", "r"):
            value.type.tensor_type.ClearField("shape")
    check = FactCheck(model)
    for count in (0, 2):
        assert check.check({"x": floats(2, 3), "n": np.array(count)}) > 3


def test_an_iteration_number_has_at_most_one_axis():
    text = """
        g (float x) => (int64[a,b] y, float z) <int64 n = {2}, bool c = {1}>
        { y = Loop(n, c) <body = l (int64[1,1] i, bool k) => (bool k2, int64[r] s) {
              k2 = Identity(k)  s = Shape(i) }>
          z = Neg(x) }"""
    assert FactCheck(parse(text, 20)).check({"x": np.array(1, np.float32)}) > 1


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_divisions_of_negative_numbers(op):
    """The number 3 - B is negative for a large B.

    Div rounds toward 0. Mod is the remainder of a division that rounds down.
    """
    model = rewrite(
        f"""g (float[B,4] x) => (int64[1] y, int64[1] z) <int64[1] zero = {{0}},
        int64[1] three = {{3}}, int64[1] two = {{2}}, int64[1] minus = {{-2}}>
        {{ s = Shape(x)  b = Gather(s, zero)  d = Sub(three, b)  y = {op}(d, two)
           z = {op}(b, minus) }}"""
    )
    model.check(*inputs([(n, 4) for n in range(8)]))


ALLOW_ZERO = [(13, ""), (18, ""), (18, "<allowzero=1>"), (18, "<allowzero=2>")]


@pytest.mark.parametrize(("opset", "attribute"), ALLOW_ZERO)
@pytest.mark.parametrize("target", ["b, rest", "b, t, rest", "b, t, rest, two", "rest, t, two"])
def test_a_reshape_of_an_empty_axis(opset, attribute, target):
    """onnxruntime accepts a target with a -1 and a 0 if allowzero is set."""
    model = rewrite(
        f"""g (float[B,S,4] x) => (float y, int64[n] z, float w) <int64[1] zero = {{0}},
        int64[1] one = {{1}}, int64[1] rest = {{-1}}, int64[1] two = {{2}}>
        {{ s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)
           to = Concat<axis=0>({target})  y = Reshape{attribute}(x, to)  z = Shape(y)
           w = ConstantOfShape(z) }}""",
        opset,
    )
    model.check(*inputs([(2, 3, 4), (1, 1, 4), (0, 3, 4), (2, 0, 4), (5, 2, 4)]))


@pytest.mark.parametrize("size", ["3", "N"])
def test_slices_to_the_ends_of_integers(size):
    lowest = -(2**63)
    highest = 2**63 - 1
    for start, end, step in [
        (0, lowest + 1, 1),
        (0, lowest, 1),
        (lowest, highest, 1),
        (highest, highest, 1),
        (-1, highest, -1),
        (-1, 2**31 - 1, -1),
        (highest, lowest, -1),
        (0, highest, 2**62),
    ]:
        model = rewrite(
            f"""g (float[{size},2] x) => (float[M,2] y, int64[2] s)
            <int64[1] a = {{{start}}}, int64[1] b = {{{end}}}, int64[1] z = {{0}},
            int64[1] k = {{{step}}}>
            {{ t = Slice(x, a, b, z, k)  s = Shape(t)  y = Neg(t) }}"""
        )
        model.check(*inputs([(3, 2)]))


@pytest.mark.parametrize("sizes", ["1,1,1", "N,C,W"])
def test_a_window_that_does_not_fit_agrees_with_onnxruntime(sizes):
    nodes = "p = MaxPool<kernel_shape=[2], strides=[2]>(x) y = Shape(p)"
    text = f"g (float[{sizes}] x) => (int64[3] y) {{ {nodes} }}"
    assert FactCheck(parse(text, 20)).check({"x": floats(1, 1, 1)}) > 0
