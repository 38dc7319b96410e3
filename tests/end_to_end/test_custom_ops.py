"""Test models with custom ops from a library of the user, here onnxruntime-extensions."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.cli import main
from onnxfold.tools.bench.side_by_side import bench_models

SPEC = importlib.util.find_spec("onnxruntime_extensions")  # importing the package takes seconds
LIBRARIES = list(Path(SPEC.origin).parent.glob("_extensions_pydll*.so")) if SPEC else []
HEADER = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>'
TEXT = """g (float[N, 4] x, float[4, 4] r) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> {
    v = Neg (w)
    a = Add (x, v)
    negative, positive = ai.onnx.contrib.NegPos (a)
    b = Sub (positive, negative)
    t = Transpose (r)
    y = MatMul (b, t)
}"""

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="onnxruntime-extensions is not installed")


@pytest.fixture
def path(tmp_path) -> Path:
    onnx.save(onnx.parser.parse_model(HEADER + TEXT), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_compare_and_bisect(path, tmp_path):
    wrong = onnx.parser.parse_model(HEADER + TEXT.replace("{1, 2, 3, 4}", "{1, 2, 3, 5}"))
    assert onnxfold.compare(path, path, custom_ops=LIBRARIES).backend == "onnxruntime"
    result = onnxfold.compare(path, wrong, custom_ops=LIBRARIES, bisect=True)
    assert not result.passed
    assert result.first_difference.value == "v"
    with pytest.raises(onnxfold.ModelError, match=r"NegPos.* is not a registered"):
        onnxfold.compare(path, path)


def test_check(path, tmp_path):
    out = tmp_path / "out.onnx"
    library = str(LIBRARIES[0])
    report = onnxfold.optimize_file(path, out, custom_ops=[library])  # custom_ops implies a check
    assert report.check is not None and report.check.passed
    assert report.nodes_after.get("Neg") is None and report.nodes_after["ai.onnx.contrib::NegPos"]
    model, ok = onnxfold.simplify(path, 1, custom_lib=library)
    assert ok and len(model.graph.node) == 5
    batch = onnxfold.batch(path, tmp_path / "batch", check=1, custom_ops=[library])
    assert [outcome.status for outcome in batch.outcomes] == ["done"]
    with pytest.raises(onnxfold.UsageError, match="custom_ops must be Sequence"):
        onnxfold.optimize(path, custom_ops=library)
    with pytest.raises(FileNotFoundError, match=r"^\S*no\.so: no such file"):
        onnxfold.optimize_file(path, out, check=1, custom_ops=[tmp_path / "no.so"])


def test_sessions_take_options_with_a_library(path, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(LIBRARIES[0]))
    random = np.random.default_rng(0)
    feeds = {"x": random.random((2, 4), np.float32), "r": random.random((4, 4), np.float32)}
    want = ort.InferenceSession(path, options).run(None, feeds)
    onnxfold.split(path, tmp_path / "bundle", runtime_constants=["r"])
    for session in (
        onnxfold.Session(path, options, runtime_constants=["r"]),
        onnxfold.Session(path, options, runtime_constants=["r"], specialize=True),
        onnxfold.Session(tmp_path / "bundle", options),
        onnxfold.Session(tmp_path / "bundle", options, specialize=True),
        onnxfold.InferenceSession(path, options),
        onnxfold.InferenceSession(path, options),
    ):
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, feeds), want, rtol=1e-6)


def test_bench(path):
    splitting = {"runtime_constants": ["r"]}
    found = bench_models([path], custom_ops=LIBRARIES, rounds=1, splitting=splitting, ulp=4)
    assert [model.ops["ai.onnx.contrib::NegPos"] for model in found.models] == [1, 1]
    assert found.models[1].within


def test_command_line(path, tmp_path, capsys):
    library = ("--custom-ops", str(LIBRARIES[0]))
    assert main(["compare", str(path), str(path), *library, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert main([str(path), str(tmp_path / "out.onnx"), *library]) == 0
    assert "check: equal bit for bit" in capsys.readouterr().out
    assert main(["bench", str(path), "--rounds", "1", "--json", *library]) == 0
