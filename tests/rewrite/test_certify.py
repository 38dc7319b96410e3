"""Test `onnxfold.testing.certify`, which searches for a model that requires each condition."""

import pytest

from onnxfold.rewrite import Constant, op, rule, where
from onnxfold.support.errors import UsageError
from onnxfold.testing import certify

RELU = "(float[N,3] x) <float c = {1}> t = Relu(x) y = Max(t, c)"
TRANSPOSE = "(float[2,3] x) <float c = {1}> t = Transpose<perm=[1,0]>(x) y = Add(t, c)"


@rule
def max_of_relu(x, c: Constant):
    """No model requires the second condition, because rules do not rewrite constant results."""
    return op.Max(op.Relu(x), c) >> op.Max(x, c), where(c.number > 0, ~x.is_constant)


@rule
def add_to_transposed(x, c: Constant):
    """If c had three axes, the result would have three axes, and the new Transpose would fail."""
    before = op.Add(op.Transpose(x, perm=(1, 0)), c)
    after = op.Add(x, c)
    return before >> op.Transpose(after, perm=(1, 0)), where(c.has_one_element, c.rank <= 2)


def test_a_condition_that_no_model_needs():
    message = "~x.is_constant: no model requires the condition; add a model, or remove it"
    with pytest.raises(AssertionError, match=message) as error:
        certify(max_of_relu, RELU)
    reason = "needs c.number > 0: without it, 3 of 3 elements differ (0.0 becomes -0.0) at {'N': 1}"
    assert reason in str(error.value)


def test_without_a_search():
    certify(max_of_relu, RELU, thorough=False)


def test_a_refused_model_shows_the_need():
    certify(add_to_transposed, TRANSPOSE, refused=[f"{TRANSPOSE}; float[1,1,1] c = {{1}}"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float x)", "the model has no nodes"),
        ("<ir_version: 10> g (float x) { y = Relu(x) }", "cannot read the model: Expected"),
        ("(bool x) y = Neg(x)", "the model is not valid: .*unsupported type"),
    ],
)
def test_invalid_texts_of_models(text: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        certify(max_of_relu, text)


def test_a_model_of_an_older_opset():
    with pytest.raises(AssertionError, match="the rule requires opset 20, the model has 17"):
        certify(rule(opset=20)(lambda x: op.Abs(op.Gelu(x)) >> x), "(float[3] x) y = Relu(x)")


@pytest.mark.parametrize(
    ("function", "model"),
    [
        (lambda x: op.Relu(op.Mul(x, 0.5)) >> op.Mul(op.Relu(x), 0.5), "t = Mul(x, c) y = Relu(t)"),
        (lambda x: op.Relu(op.LeakyRelu(x)) >> op.Relu(x), "t = LeakyRelu(x) y = Relu(t)"),
        (lambda x: op.Mul(op.Mul(x, 2), 0.5) >> x, "t = Mul(x, d) y = Mul(t, c)"),
    ],
)
def test_products_that_underflow_or_overflow(function, model):
    with pytest.raises(AssertionError, match=r"elements differ \(\S+ becomes \S+\)"):
        certify(rule(function), f"(float[N,3] x) <float c = {{0.5}}, float d = {{2}}> {model}")
