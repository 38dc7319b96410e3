"""Test which equal nodes are merged."""

from collections import Counter

import onnx
import pytest
from fold_check import X, assert_same, count_ops, interface, parse

from onnxfold.api.options import Options
from onnxfold.ir import storage
from onnxfold.passes.duplicates import CommonSubexpressions

HEADER = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'


def share(text: str, feeds=None, **options) -> Counter[str]:
    """Merge equal nodes, and return the number of remaining nodes of each op type.

    With ``feeds``, assert that the result is valid and that its outputs are equal bit for bit.
    """
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


def test_different_nodes_are_not_merged():
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


def test_omitted_trailing_inputs_are_ignored():
    model = parse("g (float[2] x) => (float[2] y) { a = Clip(x)  b = Clip(x)  y = Sub(a, b) }")
    model.graph.node[1].input.extend(["", ""])
    opened = storage.from_proto(model)
    assert CommonSubexpressions()(opened).modified
    assert count_ops(opened) == {"Clip": 1, "Sub": 1}


def test_consumers_of_equal_graph_outputs_are_merged():
    ops = share(
        """g (float[2] x) => (float[2] a, float[2] b, float[2] y) {
            a = Relu(x)  b = Relu(x)  c = Neg(a)  d = Neg(b)  y = Sub(c, d)
        }""",
        X,
    )
    assert ops == {"Relu": 2, "Neg": 1, "Sub": 1}


def test_nan_attributes_are_equal():
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
def test_nondeterministic_nodes_are_not_merged(op):
    model = f"""g (float[2] x) => (float[2] y) <float half = {{0.5}}, bool yes = {{1}}> {{
        a = {op}  b = {op}  y = Sub(a, b)
    }}
    {HEADER} noise (a) => (z) {{ z = RandomNormalLike(a) }}
    {HEADER} deep (a) => (z) {{ z = local.noise(a) }}"""
    assert share(model) == count_ops(storage.from_proto(parse(model)))


def test_many_nodes_at_once():
    nodes = "\n".join(f"a{k} = Exp(x)" for k in range(20_000))
    assert share(f"g (float[2] x) => (float[2] y) {{ {nodes}  y = Add(a7, a9) }}")["Exp"] == 1
