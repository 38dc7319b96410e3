"""Test combinations of rules and other passes in models that exporters write."""

import pytest

import onnxfold
from onnxfold.testing.model_text import Example

SCALED = """(float[1,3,6,6] x) <float c = {0.3}, float[1] d = {0.5}, float[2,3,1,1] w>
    t = Mul(x, c) y = Add(t, d) z = Conv(y, w)"""
ACTIVATED = """(float[1,4,5,5] x)
    <float[4,4,1,1] w, float three = {3}, float zero = {0}, float six = {6}>
    p = Conv(x, w) a = Add(p, three) k = Clip(a, zero, six) t = Mul(p, k) h = Div(t, six)
    y = Conv(h, w)"""
SEQUENCE = """(float[N,5] x) <int64[2] c = {2, 3}, int64 i = {0}, int64 j = {-1}>
    s = SplitToSequence<axis=1>(x, c) a = SequenceAt(s, i) y = SequenceAt(s, j); outputs a, y"""
EXPECTED = """(float[1,24,5] x)
    <float[1,6,1,1] w = {0, 1, 2, 3, 4, 5}, int64[4] split = {1, 4, 6, 5},
     int64[3] sides = {1, 4, 5}>
    r = Reshape(x, split) t = Transpose<perm=[0,2,1,3]>(r) s = Softmax<axis=1>(t) v = Conv(s, w)
    y = Reshape(v, sides)"""
SHIFTED = """(float[N,2,5,6] x) <float[3,2,3,3] w, float[1,1,1] c = {0.5}>
    t = Conv(x, w) y = Add(t, c)"""


@pytest.mark.parametrize(
    "text, remaining",
    [
        # the division by 6 belongs to the activation, not to the weight of the next convolution
        (ACTIVATED, ["Conv", "HardSigmoid", "Mul", "Conv"]),
        (SCALED, ["Conv"]),
        (SEQUENCE, ["Split"]),
        # no Transpose remains before the Reshape to the sides
        (EXPECTED, ["Reshape", "Softmax", "MatMul", "Reshape"]),
        # an Expand creates the bias from one number; opset 7 has no Expand, but this one is folded
        (f"{SHIFTED}; opset 7", ["Conv"]),
        (f"{SHIFTED}; opset 9", ["Conv"]),
    ],
)
def test_remaining_ops(text, remaining):
    original = Example.of(text).instance.model
    optimized = onnxfold.optimize(original, level=2)
    assert [node.op_type for node in optimized.graph.node] == remaining
    onnxfold.compare(original, optimized, rtol=1e-5, atol=1e-5).assert_equal()


@pytest.mark.parametrize("shared", [False, True])
def test_a_bias_replaces_the_added_constant(shared):
    """A new bias that is as large as a removed constant does not make the model grow."""
    text = """(float[N,2,5,5] x, float[400,1,1] z) <float[400,2,3,3] w, float[400,1,1] c>
        t = Conv(x, w) y = Add(t, c) u = Mul(z, c); outputs y"""
    optimized = onnxfold.optimize(Example.of(text + ", u" * shared).instance.model, level=2)
    assert ("Add" in {node.op_type for node in optimized.graph.node}) is shared
