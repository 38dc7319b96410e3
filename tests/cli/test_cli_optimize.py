import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_table import saved

import onnxfold

KEYS = {
    "source", "target", "nodes_before", "nodes_after", "bytes_before", "bytes_after", "folded",
    "kept", "pool", "precision", "rounded", "seconds", "cpu_seconds", "peak_rss_bytes", "stages",
    "check", "warnings", "removed_metadata_bytes",
    "rewrites", "inexact", "withheld", "beyond", "decisions",
    "bytes_written", "assumptions", "places",
}  # fmt: skip


def ops(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_real_model_is_smaller_and_equal(run, done, swin, tmp_path):
    out = tmp_path / "out.onnx"
    result = done("optimize", swin, "-o", out, "--check", 1, "--no-fsync", "--json")
    document = json.loads(result.out)
    assert document.keys() == KEYS
    before = document["nodes_before"]
    after = document["nodes_after"]
    assert sum(after.values()) < sum(before.values()) / 2
    assert "Transpose" in before
    assert document["bytes_after"] < document["bytes_before"]
    assert document["check"]["equal"] is True
    assert document["peak_rss_bytes"] > 10**6
    assert run("compare", swin, out).code == 0


def test_summary_table(run, done, swin, tmp_path):
    result = done("optimize", swin, "-o", tmp_path / "out.onnx")
    assert result.err == ""
    for text in ("all ops", "Unsqueeze", "stored bytes", "peak memory"):
        assert text in result.out
    assert "pool (buffers of constants)" not in result.out
    more = run("optimize", swin, "-o", tmp_path / "out.onnx", "-v").out
    for word in ("pool (buffers of constants)", "rules applied:", "(load", "-O2 would apply: 8"):
        assert word in more


def test_explain_lists_decisions(done, swin, tmp_path):
    name = "*layers.0/blocks.0/attention/relative_position_bias/Unsqueeze*"
    options = ["--keep", name, "--fold", "*", "--no-fsync"]
    result = done("optimize", swin, "-o", tmp_path / "out.onnx", "--explain", *options)
    lines = result.out.splitlines()
    titles = ["value", "op", "decision"]
    head = next(k for k, line in enumerate(lines) if line.split()[:3] == titles)
    kept, *folded = [line for line in lines[head + 2 :] if " folded " in line or " kept " in line]
    assert " kept " in kept and "kept by option" in kept
    assert len(folded) == 19 and all("folded" in line for line in folded)
    assert "--fold matches the node or its result" in result.out


def test_plan_writes_no_file(run, done, swin, tmp_path):
    before = sorted(tmp_path.iterdir())
    result = done("optimize", swin, tmp_path / "out.onnx", "--plan", "--explain")
    assert sorted(tmp_path.iterdir()) == before
    words = ("nothing was written", "peak memory", "to write", "decision")
    assert all(word in result.out for word in words)
    document = json.loads(run("optimize", swin, "--plan", "--json").out)
    assert document["prediction"]["peak_bytes"] > 10**7
    assert document["folded"] > 100


def test_explain_writes_no_file(run, done, swin, tmp_path):
    name = "/m/swin/encoder/layers.0/downsample/reduction/Transpose_output_0"
    result = done("explain", swin, "--value", name, "--json")
    (decision,) = json.loads(result.out)["decisions"]
    assert decision["folded"] and decision["bytes_if_folded"] == decision["bytes_if_kept"] > 0
    kept = run("explain", swin, "--value", name, "--keep", name)
    assert kept.code == 0 and " kept " in kept.out and "kept by option" in kept.out
    assert not list(tmp_path.glob("*.data"))


def test_optimize_is_the_default_command(run, tiny, tmp_path):
    assert run(tiny, tmp_path / "a.onnx", "--quiet").code == 0
    assert run("--quiet", tiny, "-o", tmp_path / "b.onnx").code == 0
    assert ops(tmp_path / "a.onnx") == ops(tmp_path / "b.onnx") == ["Add"]


def test_in_place(done, tiny):
    before = tiny.read_bytes()
    result = done("optimize", tiny, "-o", tiny, "--quiet")
    assert result.out == ""
    assert tiny.read_bytes() != before
    assert ops(tiny) == ["Add"]
    assert os.listdir(tiny.parent) == [tiny.name]


def test_external_data(run, swin, tmp_path):
    out = tmp_path / "out.onnx"
    assert run(swin, out, "--external-data", "-q").code == 0
    assert (tmp_path / "out.onnx.data").exists()
    assert run("compare", swin, out).code == 0
    named = tmp_path / "named.onnx"
    assert run(swin, named, "--external-data-name", "weights.bin", "-q").code == 0
    assert (tmp_path / "weights.bin").exists()
    assert run("compare", swin, named).code == 0


def test_keep(run, tiny, tmp_path):
    assert run(tiny, tmp_path / "out.onnx", "--keep", "v", "-q").code == 0
    assert "Mul" in ops(tmp_path / "out.onnx")


def test_python_m_runs_the_command(tiny, tmp_path):
    out = tmp_path / "out.onnx"
    command = [sys.executable, "-m", "onnxfold", "optimize", str(tiny), "-o", str(out), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["folded"] >= 1
    assert result.stderr == ""
    assert out.exists()


def test_files_are_closed_after_optimizing(tmp_path):
    source = tmp_path / "swin.onnx"
    target = tmp_path / "out.onnx"
    source.write_bytes(Path("models/swin.onnx").read_bytes())
    onnxfold.optimize_file(source, target)
    os.replace(target, source)  # Windows refuses this if one of the files is mapped
    assert onnxfold.optimize_file(source, target).folded == 0


LONG = """
g (float[batch, n] x) => (float[batch, 64] y) <int64[1] k = {64}, float two = {2}> {
    four = Mul(two, two)
    t, i = TopK(x, k)
    y = Mul(t, four)
}
"""


@pytest.fixture
def long(tmp_path):
    """Return the path of a model that requires rows of at least 64 numbers."""
    return saved(LONG, tmp_path / "long.onnx")


def test_check_finds_valid_sizes(done, long, tmp_path):
    result = done("optimize", long, "-o", tmp_path / "out.onnx", "--check", 2)
    verdict = "equal bit for bit on 2 runs (onnxruntime, node by node), sizes: batch=2/3, n=64"
    assert verdict in result.out


def test_check_has_the_options_of_compare(run, long, tmp_path):
    out = tmp_path / "out.onnx"
    result = run("optimize", long, "-o", out, "--check-dim", "batch=5", "--check-dim", "n=70")
    assert "sizes: batch=5, n=70" in result.out
    np.savez(tmp_path / "x.npz", x=np.ones((3, 80), np.float32))
    result = run("optimize", long, "-o", out, "--feeds", tmp_path / "x.npz", "--json")
    document = json.loads(result.out)["check"]
    assert document["runs"] == ["x.npz"] and document["outputs"][0]["shape"] == [3, 64]
    loose = run("optimize", long, "-o", out, "--rtol", 0.5, "--atol", 0.25, "--ulp", 3, "--json")
    document = json.loads(loose.out)["check"]
    assert (document["rtol"], document["atol"], document["ulp"]) == (0.5, 0.25, 3)
    fixed = run("optimize", long, "-o", out, "--dim", "n=90", "--check", 1)
    assert "sizes: batch=2" in fixed.out and "n=" not in fixed.out.rpartition("check:")[2]


def test_check_with_invalid_sizes_writes_no_file(run, long, tmp_path):
    out = tmp_path / "out.onnx"
    result = run("optimize", long, "-o", out, "--check-dim", "n=3")
    assert result.code == 2 and "--check-dim" in result.err
    assert not out.exists()


def test_tolerance_of_inexact_rules_is_an_option(run, tmp_path):
    text = """g (float[n, 3, 8, 8] x) => (float[n, 4, 6, 6] y) {
        c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }"""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "s": (4,), "b": (4,), "m": (4,), "v": (4,)}
    weights = {n: rng.uniform(0.5, 2, shape).astype(np.float32) for n, shape in shapes.items()}
    saved(text, tmp_path / "in.onnx", **weights)
    arguments = ["optimize", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "-O2"]
    assert run(*arguments, "--check", 1).code == 0
    (tmp_path / "out.onnx").unlink()
    strict = run(*arguments, "--ulp", 0)
    assert strict.code == 1 and "nothing was written" in strict.err
    assert not (tmp_path / "out.onnx").exists()
    with pytest.raises(onnxfold.CheckFailedError) as failed:
        onnxfold.optimize(tmp_path / "in.onnx", level=2, ulp=0)
    assert "differ" in str(failed.value) and "written" not in str(failed.value)


def test_arguments_of_checks_in_python(long, tmp_path):
    out = tmp_path / "out.onnx"
    feeds = {"x": np.ones((1, 64), np.float32)}
    assert onnxfold.optimize_file(long, out, check=1, feeds=feeds).check.runs == ["given"]
    report = onnxfold.optimize_file(long, out, check_dims={"n": 65}, rtol=0.1)
    assert report.check.sizes["seed 0"]["n"] == 65 and report.check.rtol == 0.1
    assert onnxfold.optimize_file(long, out).check is None
    for name in ("check", "rtol", "atol", "ulp"):
        with pytest.raises(onnxfold.OnnxFoldError, match=f"{name} must be .* at least 0, got -1"):
            onnxfold.optimize_file(long, out, **{name: -1})
    for run in (onnxfold.optimize_file, onnxfold.compare):
        for value in (-1.0, math.inf, math.nan):
            with pytest.raises(onnxfold.UsageError, match=f"atol must be .* got {value}"):
                run(long, out, atol=value)
