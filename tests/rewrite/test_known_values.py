"""Test the types and constants that rules read."""

import numpy as np
import onnx_ir as ir
import pytest
from model_table import graph, parse

from onnxfold.analysis.elements import is_exactly
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir.symbolic import Expr

F32 = np.float32


def oracle(proto):
    model = ir.from_proto(proto)
    facts = ModelFacts(model)
    values = {v.name: v for v in model.graph.inputs}
    for inner in facts.scopes.graphs():
        values.update(inner.initializers)
        values.update({v.name: v for v in inner.inputs})
        values.update({o.name: o for node in inner for o in node.outputs})
    return facts.types, facts.constness, values


def shapes(proto, *names):
    types, _, values = oracle(proto)
    results = [named_sizes(types, types.of(values[name]).shape) for name in names]
    return results[0] if len(results) == 1 else results


def named_sizes(types, shape):
    return None if shape is None else tuple(types.algebra.name_of(d) or d for d in shape)


def test_the_type_of_an_if_merges_both_branches():
    text = """g (float[N,3] x, bool b) => (y, z) {
        y, z = If (b) <
            then_branch = t () => (float[N,3] u, float[3,N] v) { u = Relu(x) v = Transpose(x) },
            else_branch = e () => (float[N,3] p, float[N,3] q) { p = Neg(x) q = Neg(x) }
        >
    }"""
    y, z = shapes(parse(text, 17), "y", "z")
    assert y == ("N", 3)
    assert len(z) == 2 and z[0] not in ("N", 3)


def test_a_loop_may_change_shapes_but_not_dtypes():
    text = """g (float[2] x, int64 n, bool k) => (y) {
        y = Loop (n, k, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[M] o) {
            d = Identity(c) o = Concat<axis=0>(s, s)
        }>
    }"""
    types, _, values = oracle(parse(text, 17))
    s, o, y = (types.of(values[name]) for name in "soy")
    assert {f.dtype for f in (s, o, y)} == {ir.DataType.FLOAT}
    assert {f.rank for f in (s, o, y)} == {1} and not any(f.static_shape for f in (s, o, y))
    assert s.shape != y.shape and types.of(values["i"]).shape == ()


def test_negative_sizes_are_unknown():
    proto = graph("float[N,3] x", "y = Neg(x)")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    shape = shapes(proto, "y")
    assert isinstance(shape[0], Expr) and shape[1] == 3


def test_types_in_a_function_depend_only_on_its_nodes():
    text = """g (float[N] x) => (float[N] y) { y = local.F(x) }
    <domain: "local", opset_import: ["": 17]> F (v) => (w) { t = Neg(v) w = Shape(t) }"""
    types, _, values = oracle(parse(text, 17))
    assert types.of(values["t"]).dtype is None and types.of(values["t"]).shape is None
    assert types.of(values["w"]).dtype == ir.DataType.INT64


def test_long_chains_do_not_recurse():
    nodes = [f"t{k + 1} = Neg(t{k})" for k in range(5000)]
    assert shapes(graph("float[N] t0", *nodes), "t5000") == ("N",)
    constant = graph("float[N] x", *nodes, "y = Add(x, t5000)", t0=F32(2))
    _, constness, values = oracle(constant)
    assert constness.is_constant(values["t5000"]) and constness.array(values["t5000"]) == 2


def test_constants():
    text = (
        "a = Add(c, c)",
        "r = RandomNormalLike(c)",
        "s = Shape(x)",
        "k = Constant<value_float = 2.0>()",
        "b = Mul(a, k)",
        "y = Add(x, b)",
    )
    _, constness, values = oracle(graph("float[N] x", *text, c=np.ones(2, F32)))
    constant = {name for name, value in values.items() if constness.is_constant(value)}
    assert constant == {"a", "b", "c", "k"}
    np.testing.assert_array_equal(constness.array(values["b"]), [4, 4])
    assert constness.array(values["y"]) is None


def test_large_constants_are_not_read():
    big = np.ones(1 << 20, F32)
    proto = graph("float[N] x", "a = Neg(c)", "y = Add(x, a)", c=big)
    _, constness, values = oracle(proto)
    assert constness.is_constant(values["a"]) and constness.array(values["a"]) is None
    assert constness.all_equal(values["c"], 1.0) is True
    assert constness.all_equal(values["c"], 2.0) is False
    assert constness.all_equal(values["a"], -1.0) is None


def test_one_element_among_many_is_found():
    big = np.zeros(1 << 20, F32)
    big[777_777] = -0.0
    _, constness, values = oracle(graph("float[N] x", "y = Add(x, c)", c=big))
    assert constness.all_equal(values["c"], 0.0) is False


@pytest.mark.parametrize(
    ("array", "number", "expected"),
    [
        (np.array([0.0, 0.0], F32), 0.0, True),
        (np.array([0.0, -0.0], F32), 0.0, False),
        (np.array([-0.0], F32), -0.0, True),
        (np.array([0]), -0.0, True),
        (np.array([1]), True, False),
        (np.array([True]), 1, False),
        (np.array([True]), True, True),
        (np.array([0.1], F32), 0.1, False),
        (np.array([0.5], np.float16), 0.5, True),
        (np.array([0.5], ir.DataType.BFLOAT16.numpy()), 0.5, True),
        (np.array([-0.0], ir.DataType.BFLOAT16.numpy()), 0.0, False),
        (np.array([np.nan], F32), np.nan, False),
        (np.array([2**53 + 1]), float(2**53), False),
        (np.array([255], np.uint8), -1, False),
        (np.array([np.inf], F32), np.inf, True),
        (np.array([1]), np.inf, False),
        (np.array(["1"], object), 1, False),
    ],
)
def test_exactly(array, number, expected):
    assert is_exactly(array, number) is expected
