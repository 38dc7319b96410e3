"""Programs that call onnxsim or onnxslim call onnxfold by changing the import."""

from pathlib import Path

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
