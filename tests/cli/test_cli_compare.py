import json

import numpy as np
import onnx
import pytest


@pytest.fixture
def changed(tiny):
    model = onnx.load(tiny)
    model.graph.initializer[0].float_data[:] = [1, 2.5]
    path = tiny.with_name("changed.onnx")
    onnx.save(model, path)
    return path


def test_equal(done, tiny):
    result = done("compare", tiny, tiny, "--seeds", 2)
    assert "equal bit for bit on 2 runs (onnxruntime, node by node)" in result.out


def test_different(run, tiny, changed):
    result = run("compare", tiny, changed)
    assert result.code == 1
    assert "DIFFERENT" in result.out
    assert run("compare", tiny, changed, "--atol", "1.01").code == 0


def test_json(run, tiny, changed):
    document = json.loads(run("compare", tiny, changed, "--json", "--dim", "batch=3").out)
    assert document["passed"] is False
    assert document["outputs"][0]["shape"] == [3, 2]
    assert document["outputs"][0]["max_abs_error"] == pytest.approx(1.0, abs=1e-6)


def test_feeds(run, tiny, tmp_path):
    np.savez(tmp_path / "feeds.npz", x=np.ones((4, 2), np.float32))
    assert run("compare", tiny, tiny, "--feeds", tmp_path / "feeds.npz").code == 0


def test_bench_compares_models(run, done, swin, tiny, tmp_path):
    run("optimize", swin, "-o", tmp_path / "folded.onnx", "-q")
    few = ("bench", swin, tmp_path / "folded.onnx", "--rounds", 1, "--threads", 1)
    result = done(*few)
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["swin", "folded"]
    assert "1 thread" in lines[0] and "all threads" not in lines[0]
    assert "com.microsoft::SkipLayerNormalization" in result.out
    assert any(" ms in " in line for line in lines)  # the ops depend on the version of onnxruntime
    document = json.loads(run("bench", tiny, tiny, *few[3:], "--json").out)
    assert [each["nodes"] for each in document["models"]] == [1, 1]
    assert document["rounds"] == 1 and document["providers"] == ["CPUExecutionProvider"]
