"""What the pass leaves of shape arithmetic, in graphs, subgraphs and functions."""

from __future__ import annotations

import json

import onnx
import pytest
from symbolic_check import floats, parse, rewrite

from onnxfold import storage
from onnxfold.errors import UsageError
from onnxfold.options import Options
from onnxfold.passes.symbolic_shapes import SymbolicShapes


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
        ({"keep_dims": ["height"]}, "no input has a dimension 'height'"),
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
