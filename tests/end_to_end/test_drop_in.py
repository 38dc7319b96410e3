"""Programs that call onnxsim or onnxslim call onnxfold by changing the import."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfold
from onnxfold.errors import UsageError

SWIN = "models/swin.onnx"


def test_simplify(tmp_path: Path):
    model = onnx.load(SWIN)
    before = model.SerializeToString()
    result, ok = onnxfold.simplify(model, check_n=1)
    assert ok
    assert len(result.graph.node) == 194
    assert model.SerializeToString() == before
    onnxfold.save(onnxfold.load(SWIN), tmp_path / "swin.onnx", external_data=True)
    from_path, ok = onnxfold.simplify(tmp_path / "swin.onnx")
    assert ok
    assert from_path == result
    fixed, _ = onnxfold.simplify(model, overwrite_input_shapes={"pixel_values": [1, 3, 64, 64]})
    assert fixed.graph.node == result.graph.node
    with pytest.raises(UsageError):
        onnxfold.simplify(model, overwrite_input_shapes={"pixel_values": [1, 3, 32, 32]})


def test_slim(tmp_path: Path):
    result = onnxfold.slim(onnx.load(SWIN), input_shapes=["pixel_values:1,3,64,64"])
    assert result is not None
    assert len(result.graph.node) == 194
    for k, model in enumerate([SWIN, onnx.load(SWIN)]):
        assert onnxfold.slim(model, tmp_path / f"{k}.onnx") is None
        assert len(onnx.load(tmp_path / f"{k}.onnx").graph.node) == 194
    with pytest.raises(UsageError, match="not of the form"):
        onnxfold.slim(SWIN, input_shapes=["pixel_values"])
    with pytest.raises(UsageError, match="dtype"):
        onnxfold.slim(SWIN, dtype="fp16")


def test_models_of_onnx_ir_are_left_alone(tmp_path: Path):
    model = onnxfold.load(SWIN)
    result, ok = onnxfold.simplify(model, check_n=1)
    assert ok
    assert len(result.graph.node) == 194
    shapes = {"pixel_values": [1, 3, 64, 64]}
    fixed, ok = onnxfold.simplify(model, check_n=1, overwrite_input_shapes=shapes)
    assert ok
    assert fixed.graph.node == result.graph.node
    assert onnxfold.slim(model, tmp_path / "slim.onnx") is None
    assert len(onnx.load(tmp_path / "slim.onnx").graph.node) == 194
    assert len(list(model.graph)) == len(onnx.load(SWIN).graph.node)


@pytest.mark.parametrize(
    "function",
    [
        *(onnxfold.optimize, onnxfold.simplify, onnxfold.slim, onnxfold.Session),
        lambda model: onnxfold.compare(SWIN, model),
        lambda model: onnxfold.split(model, "bundle"),
    ],
)
def test_what_is_no_model_is_refused(function: Callable[[Any], object]):
    graph = onnx.load(SWIN, load_external_data=False).graph
    with pytest.raises(UsageError, match=r"expected a path, .*ONNXProgram, got GraphProto"):
        function(graph)


def test_fixed_sizes_are_checked_with_these_sizes(tmp_path: Path):
    """The original has dynamic dims, the result has not: both are fed what the result takes."""
    decoder = "models/t5-decoder.onnx"
    shapes = {"input_ids": [1, 16]}
    model, same = onnxfold.simplify(decoder, check_n=2, overwrite_input_shapes=shapes)
    assert same
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 16]
    options = {"dims": {"batch": 3}, "check": 2}
    report = onnxfold.optimize_file(decoder, tmp_path / "fixed.onnx", **options)
    assert report.check is not None
    assert report.check.sizes["seed 1"].keys() == {"dec_seq", "enc_seq"}
