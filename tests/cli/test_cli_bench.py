from __future__ import annotations

import json


def test_models_side_by_side(run, swin, tiny, tmp_path):
    run("optimize", swin, "-o", tmp_path / "folded.onnx", "-q")
    few = ("bench", swin, tmp_path / "folded.onnx", "--rounds", 1, "--threads", 1)
    result = run(*few)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["swin", "folded"]
    assert "1 thread" in lines[0] and "all threads" not in lines[0]
    assert "com.microsoft::SkipLayerNormalization" in result.out
    assert any(line.startswith("Reshape ") and " ms in " in line for line in lines)
    document = json.loads(run("bench", tiny, tiny, *few[3:], "--json").out)
    assert [each["nodes"] for each in document["models"]] == [1, 1]
    assert document["rounds"] == 1 and document["providers"] == ["CPUExecutionProvider"]
