"""What the pass leaves of shape arithmetic, in graphs, subgraphs and functions."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from symbolic_check import floats, inputs, parse, rewrite

from onnxfold import storage
from onnxfold.errors import UsageError
from onnxfold.options import Options
from onnxfold.passes.symbolic_shapes import SymbolicShapes


def test_static_shape_arithmetic_goes():
    model = rewrite(
        """g (float[2,3,4] x) => (float[6,4] y) <int64[1] zero = {0}, int64[1] one = {1},
        int64[1] four = {4}>
        { s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)  m = Mul(b, t)
          to = Concat<axis=0>(m, four)  r = Reshape(x, to)  y = Relu(r) }"""
    )
    assert dict(model.ops) == {"Reshape": 1, "Relu": 1}
    model.check(*inputs([(2, 3, 4)]))


def test_the_static_part_of_a_shape_is_known():
    model = rewrite(
        """g (float[B,3,4] x) => (int64 n, int64[2] s)
        { s = Shape<start=1>(x)  n = ReduceProd<keepdims=0>(s) }"""
    )
    assert not model.ops
    model.check(*inputs([(0, 3, 4), (2, 3, 4)]))


def test_no_operations_go():
    model = rewrite(
        """g (float[B,S,4] x) => (float[B,S,4] y) <int64[1] one = {1}>
        { s = Shape(x)  a = Expand(x, s)  c = Unsqueeze(a, one)
          e = Flatten<axis=2>(c)  f = Reshape(e, s)  y = Relu(f) }"""
    )
    assert dict(model.ops) == {"Relu": 1}
    model.check(*inputs([(0, 3, 4), (2, 3, 4), (1, 1, 4)]))


def test_an_expand_of_some_axes_needs_no_shape_of_the_others():
    model = rewrite(
        """g (float[B,1,4] x) => (float[B,3,4] y) <int64[2] c = {3, 4}, int64[1] zero = {0}>
        { s = Shape(x)  b = Gather(s, zero)  to = Concat<axis=0>(b, c)  y = Expand(x, to) }"""
    )
    assert dict(model.ops) == {"Expand": 1}
    assert model.constant("y") == [1, 3, 1]
    model.check(*inputs([(0, 1, 4), (1, 1, 4), (3, 1, 4)]))


def test_the_same_shape_is_computed_once():
    model = rewrite(
        """g (float[B,S] x) => (float[B,S,2] y, float[B,S,2] z) <int64 zero = {0}, int64 one = {1},
        int64[1] ax = {0}, int64[1] two = {2}>
        { s = Shape(x)  b = Gather(s, zero)  bu = Unsqueeze(b, ax)  t = Gather(s, one)
          tu = Unsqueeze(t, ax)  to = Concat<axis=0>(bu, tu, two)  y = ConstantOfShape(to)
          r = Relu(x)  s2 = Shape(r)  b2 = Gather(s2, zero)  bu2 = Unsqueeze(b2, ax)
          t2 = Gather(s2, one)  tu2 = Unsqueeze(t2, ax)  to2 = Concat<axis=0>(bu2, tu2, two)
          u = ConstantOfShape(to2)  z = Neg(u) }"""
    )
    assert dict(model.ops) == {"Shape": 1, "Concat": 1, "ConstantOfShape": 2, "Neg": 1}
    model.check(*inputs([(0, 3), (2, 3), (1, 1)]))


@pytest.mark.parametrize("opset", [13, 21])
def test_a_list_of_sizes_takes_the_fewest_nodes(opset):
    model = rewrite(
        """g (float[B,3,S,T] x) => (float[S,T,7] y) <int64 two = {2}, int64 three = {3},
        int64[1] ax = {0}, int64[1] seven = {7}>
        { s = Shape(x)  b = Gather(s, two)  bu = Unsqueeze(b, ax)  t = Gather(s, three)
          tu = Unsqueeze(t, ax)  to = Concat<axis=0>(bu, tu, seven)  y = ConstantOfShape(to) }""",
        opset,
    )
    assert sum(model.ops.values()) == (3 if opset >= 15 else 4)
    model.check(*inputs([(1, 3, 2, 5), (2, 3, 0, 4)]))


def test_subgraphs_share_with_what_is_outside():
    model = rewrite(
        """g (float[B,4] x, bool c) => (float[N] y) <int64[1] zero = {0}>
        { s = Shape(x)  b = Gather(s, zero)  o = ConstantOfShape(b)
          y = If(c) <then_branch = t () => (float[M] p)
              { s1 = Shape(x)  b1 = Gather(s1, zero)  p = ConstantOfShape(b1) },
            else_branch = e () => (float[K] q) { q = Neg(o) }> }"""
    )
    assert model.ops["Shape"] <= 1
    model.check(*({"x": floats(b, 4), "c": np.array(c)} for b in (0, 1, 3) for c in (0 > 1, 1 > 0)))


FUNCTION = """
<domain: "local", opset_import: ["" : 21]> rows (x) => (y)
{ s = Shape(x)  zero = Constant<value_ints = [0]>()  b = Gather(s, zero)  y = Identity(b) }
"""


def test_a_function_is_rewritten_for_all_of_its_callers():
    model = parse(
        """g (float[2,3] x, float[B,4] z) => (int64[1] y, int64[1] w)
        { y = local.rows(x)  w = local.rows(z) }"""
        + FUNCTION
    )
    model = rewrite(model)
    model.check(*({"x": floats(2, 3), "z": floats(b, 4)} for b in (0, 1, 3)))


def test_a_graph_output_that_is_known():
    model = rewrite("g (float[B,3] x) => (int64[1] y) { y = Shape<start=1>(x) }")
    assert [o.name for o in model.after.graph.output] == ["y"]
    model.check(*inputs([(2, 3)]))


def test_a_result_of_a_body_that_is_known_stays_made_by_its_node():
    """A Constant node in its place would be no node less, and larger."""
    rewritten = rewrite("""g (float x, int64 n) => (int64[2] y, int64[k] z)
        <int64[2] w = {5, 6}, bool t = {1}> {
        y, z = Loop (n, t, w)
            <body = b (int64 i, bool c, int64[2] s) => (bool d, int64[2] u, int64 v) {
            d = Identity (c)
            u = Identity (s)
            v = Size (x)
        }>
    }""")
    [loop] = rewritten.after.graph.node
    assert [n.op_type for n in loop.attribute[0].g.node] == ["Identity", "Identity", "Size"]


def test_a_graph_output_that_is_an_input():
    model = rewrite("g (float[B,3] x) => (float[B,3] y) { s = Shape(x)  y = Reshape(x, s) }")
    assert dict(model.ops) == {"Identity": 1}
    model.check(*inputs([(2, 3)]))


def test_two_graph_outputs_of_the_same_value():
    model = rewrite(
        """g (float[B,3] x) => (float[B,3] y, float[B,3] z, int64[2] s, int64[2] t)
        { r = Relu(x)  s = Shape(r)  t = Shape(x)  y = Reshape(r, s)  z = Expand(r, s) }"""
    )
    assert [o.name for o in model.after.graph.output] == ["y", "z", "s", "t"]
    model.check(*inputs([(2, 3), (0, 3)]))


def opened(text: str):
    return storage.from_proto(parse(text))


BATCH = """g (float[batch,3,S] x, float[batch] k) => (float[batch,M] y)
<int64[1] zero = {0}, int64[1] rest = {-1}>
{ s = Shape(x)  b = Gather(s, zero)  to = Concat<axis=0>(b, rest)  y = Reshape(x, to) }"""


@pytest.mark.parametrize(
    "options", [{"dims": {"batch": 2, "S": 4}}, {"input_shapes": {"x": [2, 3, 4]}}]
)
def test_dims_are_fixed_on_request(options):
    model = rewrite(BATCH, **options)
    assert model.constant("y") == [2, -1]
    x, k = model.after.graph.input
    assert [d.dim_value for d in x.type.tensor_type.shape.dim] == [2, 3, 4]
    assert [d.dim_value for d in k.type.tensor_type.shape.dim] == [2]
    record = {p.key: p.value for p in model.after.metadata_props}["onnxfold.fixed_dims"]
    assert json.loads(record).items() >= next(iter(options.values())).items()
    model.check({"x": floats(2, 3, 4), "k": floats(2)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"height": 2}}, "height"),
        ({"dims": {"batch": -2}}, "negative"),
        ({"input_shapes": {"z": [2]}}, "no input 'z'"),
        ({"input_shapes": {"x": [2]}}, "3 axes"),
        ({"input_shapes": {"x": [2, 4, 4]}}, "size 3, not 4"),
        ({"dims": {"batch": 1}, "input_shapes": {"x": [2, 3, 4]}}, "1 and 2"),
        ({"dims": {"batch": 1}, "keep_dims": ["batch"]}, "be kept"),
        ({"keep_dims": ["height"]}, "no input has a dim 'height'"),
        ({"input_shapes": {"x": [2, -2, 4]}}, "size -2"),
    ],
)
def test_what_cannot_be_fixed(options, message):
    with pytest.raises(UsageError, match=message):
        SymbolicShapes(Options(**options)).call(opened(BATCH))


def test_dims_that_are_kept():
    options = {"input_shapes": {"x": [2, -1, 4]}, "keep_dims": ["batch"]}
    model = rewrite(BATCH, **options)
    x = model.after.graph.input[0]
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["batch", 3, 4]
    record = {p.key: p.value for p in model.after.metadata_props}["onnxfold.fixed_dims"]
    assert json.loads(record) == {"S": 4, "x": ["batch", 3, 4]}
    for batch in (1, 2, 5):
        model.check({"x": floats(batch, 3, 4), "k": floats(batch)})


def test_a_second_run_changes_nothing():
    model = opened(BATCH)
    assert SymbolicShapes()(model).modified
    before = storage.to_proto(model).SerializeToString()
    assert not SymbolicShapes()(model).modified
    assert storage.to_proto(model).SerializeToString() == before


def test_the_model_is_valid_without_other_passes():
    model = opened(BATCH)
    SymbolicShapes()(model)
    onnx.checker.check_model(storage.to_proto(model), full_check=True)
