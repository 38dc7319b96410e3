from __future__ import annotations

import json

import onnx


def test_json(run, swin):
    document = json.loads(run("inspect", swin, "--json").out)
    assert document["opsets"] == {"": 17}
    assert document["inputs"] == [{"name": "pixel_values", "type": "float32[1,3,64,64]"}]
    assert document["nodes"]["LayerNormalization"] == 11
    assert document["stored_bytes"] == swin.stat().st_size
    assert document["largest"][0]["bytes"] == 192 * 48 * 4


def test_table(run, swin):
    result = run("inspect", swin)
    assert result.code == 0
    assert "pixel_values" in result.out
    assert "float32[192,48]" in result.out


def test_external_data_counts(run, swin, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(swin), path, save_as_external_data=True, location="w", size_threshold=4096)
    stored = json.loads(run("inspect", path, "--json").out)["stored_bytes"]
    both = path.stat().st_size + (tmp_path / "w").stat().st_size
    assert stored == both


def test_data_files_may_be_missing(run, swin, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(swin), path, save_as_external_data=True, location="w", size_threshold=4096)
    there = json.loads(run("inspect", path, "--json").out)
    (tmp_path / "w").unlink()
    found = json.loads(run("inspect", path, "--json").out)
    assert "'w' cannot be opened" in found["unread"] and there["unread"] is None
    same = ("nodes", "inputs", "tensors", "tensor_bytes", "largest", "parameters")
    assert all(found[key] == there[key] for key in same)
    assert abs(found["stored_bytes"] - there["stored_bytes"]) < 1 << 16  # what aligns tensors
    assert "external data could not be read" in run("inspect", path).out
    assert run("inspect", path, "--tree").code == 0
