from __future__ import annotations

import json

import pytest


def test_models_side_by_side(run, swin, tmp_path):
    run("optimize", swin, "-o", tmp_path / "folded.onnx", "-q")
    few = ("bench", swin, tmp_path / "folded.onnx", "--rounds", 1, "--threads", 1)
    result = run(*few)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["swin", "folded"]
    assert "1 thread" in lines[0] and "all threads" not in lines[0]
    assert "com.microsoft.SkipLayerNormalization" in result.out
    assert any(line.startswith("Reshape ") and " ms in " in line for line in lines)
    document = json.loads(run(*few, "--json").out)
    assert [each["nodes"] for each in document["models"]] == [
        int(line.split()[1]) for line in lines[2:4]
    ]
    assert document["rounds"] == 1 and document["providers"] == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("TINY", "missing.onnx"), "missing.onnx: no such file"),
        (("TINY", "TINY", "--runtime-const", "x"), "runtime constants are those of one model"),
        (("TINY", "--max-cache", "1MB"), "need --runtime-const"),
        (("TINY", "--provider", "Abacus"), "onnxruntime has no provider 'Abacus' here"),
        (("TINY", "--feeds", "missing.npz"), "cannot read the feeds"),
        (("TINY", "--dim", "size=3"), "no input has a dimension 'size'"),
        ((), "Missing argument"),
    ],
)
def test_mistakes_are_told_in_one_line(run, tiny, arguments, message):
    result = run("bench", *(tiny if a == "TINY" else a for a in arguments))
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
