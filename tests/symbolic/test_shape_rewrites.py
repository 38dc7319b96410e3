"""Test that shape arithmetic is simplified, and that the requested dims are fixed."""

import ast
import json
from pathlib import Path

import onnx
import pytest
from model_table import Way, cases, feeds
from symbolic_check import floats, parse, rewrite

import onnxfold
from onnxfold.ir import storage
from onnxfold.passes.symbolic_shapes import SymbolicShapes
from onnxfold.support.errors import UsageError


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
    ((kind, given),) = options.items()
    assert json.loads(record)[kind] == given
    model.check({"x": floats(2, 3, 4), "k": floats(2)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"height": 2}}, "height"),
        ({"dims": {"batch": -2}}, r"dims\['batch'\] must be .* at least 0, got -2"),
        ({"input_shapes": {"z": [2]}}, "no input has the name 'z'"),
        ({"input_shapes": {"x": [2]}}, "3 axes"),
        ({"input_shapes": {"x": [2, 4, 4]}}, "size 3, not 4"),
        ({"dims": {"batch": 1}, "input_shapes": {"x": [2, 3, 4]}}, "1 and 2"),
        ({"dims": {"batch": 1}, "keep_dims": ["batch"]}, "be kept"),
        ({"keep_dims": ["height"]}, "no input has a dimension 'height'"),
        ({"input_shapes": {"x": [2, -2, 4]}}, r"\['x'\]\[1\] must be .* at least -1, got -2"),
    ],
)
def test_invalid_fixed_dims_are_rejected(options, message):
    with pytest.raises(UsageError, match=message):
        onnxfold.optimize(parse(BATCH), **options)


@pytest.mark.parametrize(
    ("node", "fails", "runs"),
    [
        ("Add (x, w)", 2, 3),
        ("Add (x, w)", 5, 1),  # x is broadcast
        ("MatMul (w, x)", 4, 3),
        ("Concat <axis = 1> (x, w)", 1, 3),
        ("Reshape (x, s)", 5, 3),
    ],
)
def test_sizes_with_which_every_run_fails_are_rejected(node, fails, runs):
    weights = f"float[3, 3] w = {{{', '.join('1' * 9)}}}, int64[2] s = {{-1, 9}}"
    text = f"g (float[n, 3] x) => (float[p, q] y) <{weights}> {{ [a] y = {node} }}"
    made = onnxfold.optimize(parse(text), dims={"n": runs})
    assert onnxfold.compare(parse(text), made, dims={"n": runs}).equal
    with pytest.raises(UsageError, match=r"node 'a': \w+ cannot run with these sizes"):
        onnxfold.optimize(parse(text), dims={"n": fails})


def test_block_scales_may_have_other_sizes_than_the_operand():
    text = """g (int32[n, 6] x) => (float[p, q] y) <float[4, 2] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
        y = DequantizeLinear <axis = 1, block_size = 3> (x, s) }"""
    made = onnxfold.optimize(parse(text), dims={"n": 4})
    assert made.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 4


def test_dims_that_are_kept():
    options = {"input_shapes": {"x": [2, -1, 4]}, "keep_dims": ["batch"]}
    model = rewrite(BATCH, **options)
    x = model.after.graph.input[0]
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["batch", 3, 4]
    record = {p.key: p.value for p in model.after.metadata_props}["onnxfold.fixed_dims"]
    assert json.loads(record) == {"dims": {"S": 4}, "input_shapes": {"x": ["batch", 3, 4]}}
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


NAMED = """g (int64[batch,seq] ids, float[batch,past_seq] past, int64[batch,other] mask)
    => (int64[4] y) { s = Shape(mask) t = Shape(ids) y = Concat<axis=0>(s, t) }"""


def named(name):
    model = parse(NAMED)
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = name
    return model


def test_expressions_of_dims_are_fixed_with_them():
    made = onnxfold.optimize(named("past_seq + seq"), dims={"batch": 1, "seq": 4, "past_seq": 8})
    sizes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input]
    assert sizes == [[1, 4], [1, 8], [1, 12]]
    made = onnxfold.optimize(named("past_seq + seq"), dims={"seq": 4})
    assert made.graph.input[2].type.tensor_type.shape.dim[1].dim_param == "past_seq + 4"
    made = onnxfold.optimize(named("seq-len"), dims={"seq": 4})  # "len" is not a dim
    assert made.graph.input[2].type.tensor_type.shape.dim[1].dim_param == "seq-len"


@pytest.mark.parametrize(
    "options",
    [
        {"dims": {"seq": 1 << 62}},
        {"dims": {"batch": 1 << 63}},
        {"input_shapes": {"past": [1, 1 << 63]}},
    ],
)
def test_sizes_beyond_64_bits_are_rejected(options):
    with pytest.raises(onnxfold.UsageError, match=f"the size {1 << 63} of '.*' has more than 64"):
        onnxfold.optimize(named("2*seq"), **options)


@pytest.mark.parametrize(
    "name",
    [
        "batch size",
        "?",
        "1x",
        "a:b",
        "output-0_dim0",
        "a/0",
        "a % 0",
        "9**9**9**9",
        "(" * 3000,
        "-",
    ],
)
def test_any_text_can_be_the_name_of_a_dim(name):
    model = named(name)
    assert onnxfold.compare(model, onnxfold.optimize(model), seeds=2).passed
    assert onnxfold.compare(model, model, dims={name: 3}).sizes["seed 0"][name] == 3
    made = onnxfold.optimize(model, dims={name: 3})
    assert made.graph.input[2].type.tensor_type.shape.dim[1].dim_value == 3


def test_a_dim_with_the_name_of_an_input_is_recorded():
    model = named("ids")
    made = onnxfold.optimize(model, dims={"ids": 3}, input_shapes={"ids": [1, 4]})
    record = json.loads({p.key: p.value for p in made.metadata_props}["onnxfold.fixed_dims"])
    assert record["dims"]["ids"] == 3 and record["input_shapes"]["ids"] == [1, 4]


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("shapes.txt")))
def test_shapes(graph: str, way: Way) -> None:
    model = parse(graph, way.options("sizes", "n", "x").get("opset", 21))
    rewritten = rewrite(model)
    assert way.ops is None or rewritten.ops == way.ops
    for what, value in way.asserted:
        assert rewritten.constant(what.split()[1]) == ast.literal_eval(value)
    assert [o.name for o in rewritten.after.graph.output] == [o.name for o in model.graph.output]
    rewritten.check(*feeds(model, way))
