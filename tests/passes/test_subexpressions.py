"""What is computed once, and what must stay two."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from fold_check import X, assert_same, count_ops, interface, parse

from onnxfold import storage
from onnxfold.options import Options
from onnxfold.passes.subexpressions import CommonSubexpressions

HEADER = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'


def share(text: str, feeds=None, **options) -> Counter[str]:
    """The ops that are left; the model is valid, and with feeds it computes the same bits."""
    before = parse(text)
    opened = storage.from_proto(before)
    modified = CommonSubexpressions(Options(**options))(opened).modified
    after = storage.to_proto(opened)
    unchanged = storage.to_proto(storage.from_proto(before))
    assert modified == (unchanged.SerializeToString() != after.SerializeToString())
    assert interface(before) == interface(after)
    if feeds is not None:
        onnx.checker.check_model(after)
        assert_same(before, after, feeds)
    return Counter(count_ops(opened))


def test_chains_become_one():
    assert share(
        """g (float[2] x) => (float[2] y) {
            a = Exp(x)  b = Exp(x)  c = Pow(a, b)  d = Pow(b, a)  y = Mul(c, d)
        }""",
        X,
    ) == {"Exp": 1, "Pow": 1, "Mul": 1}


def test_what_differs_stays_two():
    text = """g (float[2] x) => (float[2] y) <float one = {{1}}> {{
        a = {0}  b = {1}  c = Cast<to=1>(a)  d = Cast<to=1>(b)  y = Sub(c, d)
    }}"""
    for one, other in [
        ("LeakyRelu<alpha=0.0>(x)", "LeakyRelu<alpha=-0.0>(x)"),
        ("Constant<value_float=0.0>()", "Constant<value_float=-0.0>()"),
        ("Constant<value_floats=[0.0]>()", "Constant<value_floats=[-0.0]>()"),
        ("Constant<value=float[1]{0}>()", "Constant<value=float[1]{-0.0}>()"),
        ("Constant<value_float=1.0>()", "Constant<value_int=1>()"),
        ("Cast<to=7>(x)", "Cast<to=6>(x)"),
        ("Clip(x, one)", "Clip(x, , one)"),
    ]:
        assert share(text.format(one, other), X)["Cast"] >= 2
        assert share(text.format(one, one), X)["Cast"] < share(text.format(one, other))["Cast"]


def test_a_nan_is_itself():
    model = parse("g (float[2] x) => (float[2] y) { a = Elu(x)  b = Elu(x)  y = Sub(a, b) }")
    for node in model.graph.node[:2]:
        node.attribute.append(onnx.helper.make_attribute("alpha", float("nan")))
    opened = storage.from_proto(model)
    assert CommonSubexpressions()(opened).modified
    assert count_ops(opened) == {"Elu": 1, "Sub": 1}


@pytest.mark.parametrize(
    "op",
    [
        "RandomNormalLike(x)",
        "Bernoulli(x)",
        "Dropout(x, half, yes)",
        "acme.NextToken(x)",
        "local.noise(x)",
        "local.deep(x)",
    ],
)
def test_what_gives_another_result_each_time_stays_two(op):
    model = f"""g (float[2] x) => (float[2] y) <float half = {{0.5}}, bool yes = {{1}}> {{
        a = {op}  b = {op}  y = Sub(a, b)
    }}
    {HEADER} noise (a) => (z) {{ z = RandomNormalLike(a) }}
    {HEADER} deep (a) => (z) {{ z = local.noise(a) }}"""
    unchanged = count_ops(storage.from_proto(parse(model)))
    assert share(model) == unchanged


def test_calls_of_functions_that_compute_the_same_each_time():
    assert share(
        f"""g (float[2] x) => (float[2] y) {{ a = local.f(x)  b = local.f(x)  y = Add(a, b) }}
        {HEADER} f (a) => (z) {{ b = Exp(a)  c = Exp(a)  z = Mul(b, c) }}""",
        X,
    ) == {"f": 1, "Exp": 1, "Add": 1, "Mul": 1}


def test_results_of_the_graph_keep_their_names():
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        a = Softplus(x)  y = Softplus(x)  z = Softplus(x)  u = Add(a, y)
    }"""
    assert share(text, X) == {"Softplus": 2, "Add": 1}, "y took the name of a; z has its own"
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x)  z = Identity(x) }"
    assert share(text, X) == {"Identity": 2}
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = Softplus(x)  z = Softplus(x) }"
    assert share(text, X, keep=("z",)) == {"Softplus": 2}


def test_other_outputs_are_asked_for():
    image = {"x": np.array([[[1, np.nan, 2, 3, 4, 0]]], np.float32)}
    text = """g (float[1, 1, 6] x) => (float[1, 1, 4] y, float[1, 1, 4] z, int64[1, 1, 4] i) {
        y = MaxPool<kernel_shape=[3]>(x)  z, i = MaxPool<kernel_shape=[3]>(x)
    }"""
    assert share(text, image) == {"MaxPool": 2}


def test_subgraphs_see_what_comes_before_them():
    text = """g (float[2] x, bool c) => (float[2] y) {
        a = Softplus(x)
        b = If (c) <
            then_branch = t () => (float[2] u) {
                e = Softplus(x)  f = Abs(x)  g = Abs(x)  h = Add(e, f)  u = Add(g, h)
            },
            else_branch = e () => (float[2] v) { i = Abs(x)  v = Softplus(x) }
        >
        n = Abs(x)
        k = Add(a, n)
        y = Add(b, k)
    }"""
    for condition in (True, False):
        ops = share(text, {**X, "c": np.array(condition)})
        assert ops == {"Softplus": 2, "Abs": 3, "If": 1, "Add": 4}


def test_many_nodes_at_once():
    nodes = "\n".join(f"a{k} = Exp(x)" for k in range(20_000))
    assert share(f"g (float[2] x) => (float[2] y) {{ {nodes}  y = Add(a7, a9) }}")["Exp"] == 1


def test_batch_normalization_in_training_mode_stays_two():
    text = """g (float[2,3] x, float[3] s) => (float[3] y)
        <float[3] m = {1, 2, 3}, float[3] v = {4, 5, 6}> {
        a, b, c = BatchNormalization<training_mode=1>(x, s, s, m, v)
        d, e, f = BatchNormalization<training_mode=1>(x, s, s, m, v)
        y = Add(c, f) }"""
    assert share(text)["BatchNormalization"] == 2
