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
