from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import onnxfold

KEYS = {
    "source", "target", "nodes_before", "nodes_after", "bytes_before", "bytes_after", "folded",
    "kept", "pool",
    "precision",
    "rounded",
    "roundings", "seconds", "cpu_seconds", "peak_rss_bytes", "stages", "check", "warnings",
    "rewrites", "inexact", "spared", "withheld", "beyond", "decisions",
    "bytes_written", "assumptions", "places",
}  # fmt: skip


def ops(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_a_real_model_shrinks_and_computes_the_same(run, swin, tmp_path):
    out = tmp_path / "out.onnx"
    result = run("optimize", swin, "-o", out, "--check", 1, "--no-fsync", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document.keys() == KEYS
    before, after = document["nodes_before"], document["nodes_after"]
    assert sum(after.values()) < sum(before.values()) / 2
    assert "Transpose" in before
    assert document["bytes_after"] < document["bytes_before"]
    assert document["check"]["equal"] is True
    assert document["peak_rss_bytes"] > 10**6
    assert run("compare", swin, out).code == 0


def test_the_closing_table(run, swin, tmp_path):
    result = run("optimize", swin, "-o", tmp_path / "out.onnx")
    assert result.code == 0, result.err
    assert result.err == ""
    assert "all ops" in result.out
    assert "Unsqueeze" in result.out
    assert "stored bytes" in result.out
    assert "peak memory" in result.out
    assert "hint: -O2 would rewrite" in result.out
    assert "pool memory:" not in result.out
    more = run("optimize", swin, "-o", tmp_path / "out.onnx", "-v").out
    assert all(word in more for word in ("pool memory:", "rules applied:", "(load"))


def test_why_nodes_were_folded_or_stay(run, swin, tmp_path):
    name = "*layers.0/blocks.0/attention/relative_position_bias/Unsqueeze*"
    options = ["--keep", name, "--fold", "*", "--no-fsync"]
    result = run("optimize", swin, "-o", tmp_path / "out.onnx", "--explain", *options)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    head = next(
        k for k, line in enumerate(lines) if line.split()[:3] == ["value", "op", "decision"]
    )
    kept, *folded = [line for line in lines[head + 2 :] if " folded " in line or " stays " in line]
    assert "stays" in kept and "kept by option" in kept
    assert len(folded) == 19 and all("folded" in line for line in folded)
    assert "asked for (fold)" in result.out


def test_a_plan_is_printed_and_nothing_is_written(run, swin, tmp_path):
    before = sorted(tmp_path.iterdir())
    result = run("optimize", swin, tmp_path / "out.onnx", "--plan", "--explain")
    assert result.code == 0, result.err
    assert sorted(tmp_path.iterdir()) == before
    words = ("nothing was written", "peak memory", "to read", "to write", "decision")
    assert all(word in result.out for word in words)
    document = json.loads(run("optimize", swin, "--plan", "--json").out)
    assert document["prediction"]["peak_bytes"] > 10**7
    assert document["folded"] > 100


def test_explain_writes_nothing(run, swin, tmp_path):
    name = "/m/swin/encoder/layers.0/downsample/reduction/Transpose_output_0"
    result = run("explain", swin, "--value", name, "--json")
    assert result.code == 0, result.err
    (decision,) = json.loads(result.out)["decisions"]
    assert decision["folded"] and decision["bytes_if_folded"] == decision["bytes_if_kept"] > 0
    kept = run("explain", swin, "--value", name, "--keep", name)
    assert kept.code == 0 and "stays" in kept.out and "kept by option" in kept.out
    assert not list(tmp_path.glob("*.data"))
    assert "no node" in run("explain", swin, "--value", "no such value").out
    assert run("explain", tmp_path / "missing.onnx").code == 2


def test_the_habit_of_other_tools(run, tiny, tmp_path):
    assert run(tiny, tmp_path / "a.onnx", "--quiet").code == 0
    assert run("--quiet", tiny, "-o", tmp_path / "b.onnx").code == 0
    assert ops(tmp_path / "a.onnx") == ops(tmp_path / "b.onnx") == ["Add"]


def test_in_place(run, tiny):
    before = tiny.read_bytes()
    result = run("optimize", tiny, "-o", tiny, "--quiet")
    assert result.code == 0, result.err
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


@pytest.mark.parametrize("module", [["-m", "onnxfold"]])
def test_python_m_in_a_process_of_its_own(tiny, tmp_path, module):
    out = tmp_path / "out.onnx"
    command = [sys.executable, *module, "optimize", str(tiny), "-o", str(out), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["folded"] >= 1
    assert result.stderr == ""
    assert out.exists()


def test_both_files_are_anybodys_afterwards(tmp_path):
    source, target = tmp_path / "swin.onnx", tmp_path / "out.onnx"
    source.write_bytes(Path("models/swin.onnx").read_bytes())
    onnxfold.optimize_file(source, target)
    os.replace(target, source)  # refused by Windows as long as one of them is mapped
    assert onnxfold.optimize_file(source, target).folded == 0
