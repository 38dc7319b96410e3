import io
import json
import re
import sys
from dataclasses import replace

from onnxfold.passes.stored_cut import Decision
from onnxfold.support.system import peak_rss_bytes
from onnxfold.support.tables import Table, render
from onnxfold.tools.comparison import Comparison, OutputResult
from onnxfold.tools.report.summary import Report


def kept_decision(value: str, op_type: str, reason: str) -> Decision:
    return Decision(value, "a node", op_type, "g", False, None, None, reason)


def report() -> Report:
    reason = "the model would grow: its result takes 4.2 MB"
    return Report(
        source="a.onnx",
        target="b.onnx",
        nodes_before={"Add": 3, "Transpose": 12, "com.custom::Op": 1},
        nodes_after={"Add": 3, "com.custom::Op": 1},
        bytes_before=2_000_000,
        bytes_after=1_500_000,
        folded=12,
        kept=[kept_decision(f"/layer[{i}]/Tile_out", "Tile", reason) for i in range(5)]
        + [kept_decision("r", "RandomNormal", "not deterministic")],
        pool={"created": 12, "peak_bytes": 4096, "materialized": 3},
        seconds=1.5,
        cpu_seconds=1.25,
        peak_rss_bytes=90_000_000,
        stages={"load": 0.5, "passes": 0.75, "save": 0.25},
        check=Comparison("a.onnx", "b.onnx", runs=["seed 0"]),
        warnings=["something to know"],
    )


def test_optimize_table():
    text = report().to_text(verbose=True)
    lines = text.splitlines()
    assert not any(line.startswith("Add") for line in lines)  # unchanged
    assert any(line.split() == ["Transpose", "12", "0", "-12"] for line in lines)
    assert any(line.split() == ["all", "ops", "16", "4", "-75", "%"] for line in lines)
    assert any("2.0 MB" in line and "1.5 MB" in line and "-25 %" in line for line in lines)
    assert "16 -> 4 nodes (12 folded) in 1.50 s (load 0.50, passes 0.75, save 0.25)" in text
    assert (
        "pool (buffers of constants), memory: peak 4.1 kB; buffers: created 12, materialized 3"
        in text
    )
    assert "kept 6 nodes with constant inputs:" in text
    assert "  the model would grow: 5 Tile\n" in text
    assert "    such as '/layer[0]/Tile_out' (its result takes 4.2 MB)\n" in text
    assert "  not deterministic: 1 RandomNormal\n    such as 'r'\n" in text
    assert "check: no output was compared on 1 run (onnxruntime, node by node)" in text
    assert "warning: something to know" in text
    short = report().to_text()
    assert "16 -> 4 nodes (12 folded) in 1.50 s; peak memory 90.0 MB\n" in short
    assert not any(word in short for word in ("pool", "rules applied", "(load"))
    more = replace(report(), withheld={"conv_batch_normalization": 2}).to_text(verbose=True)
    assert "\n-O2 would apply: 2 conv_batch_normalization\n" in more


def test_report_is_json():
    document = json.loads(json.dumps(report().to_dict(), allow_nan=False))
    assert document["kept"][5] == {
        "value": "r",
        "node": "a node",
        "op_type": "RandomNormal",
        "graph": "g",
        "folded": False,
        "bytes_if_folded": None,
        "bytes_if_kept": None,
        "reason": "not deterministic",
    }
    assert document["check"]["equal"] is True
    assert json.dumps(Report().to_dict())


def output_result(name, *figures, **fields):
    fields = {"run": "seed 0", "dtype": "float32", "shape": (1, 10), "elements": 10, **fields}
    return OutputResult(*figures, name=name, **fields)


def test_compare_table():
    comparison = Comparison("a", "b", runs=["seed 0"], sizes={"seed 0": {"batch": 2}})
    comparison.outputs = [
        output_result("y[0]", 1, 0.5, 0.25, 7, within=False),
        output_result("z", within=False, note="float32 became int8"),
    ]
    comparison.problems = ["outputs of a that b lacks: w"]
    text = comparison.to_text()
    assert "y[0]" in text
    assert "DIFFERENT" in text
    assert "float32 became int8" in text
    assert "seed 0: batch=2" in text
    assert "problem: outputs of a that b lacks: w" in text
    assert "different on 1 run (onnxruntime, node by node), max abs error 0.5" in text


def open_terminal(monkeypatch):
    """Replace standard output by a terminal with 80 columns."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")


def lines_of(text):
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]


def test_wide_tables_are_transposed(monkeypatch):
    open_terminal(monkeypatch)
    titles = [f"figure {k}" for k in range(12)]
    rows = [(name, *(f"{k + 10}.25 ms" for k in range(12))) for name in ("before", "after")]
    lines = lines_of(render(Table(("model", *(f">{title}" for title in titles)), iter(rows))))
    assert lines[0].split() == ["model", "before", "after"]
    assert [line.split() for line in lines[2:]] == [
        ["figure", str(k), f"{k + 10}.25", "ms", f"{k + 10}.25", "ms"] for k in range(12)
    ]


def test_table_fits_80_columns(monkeypatch):
    open_terminal(monkeypatch)
    name = "/encoder/layers.0/attention" * 3
    figures = ("10/10", "9.91e-07", "2.34e-05", "274")
    output = output_result(name, 10, 9.91e-7, 2.34e-5, 274)
    text = Comparison("a", "b", outputs=[replace(output, within=False)]).to_text()
    lines = lines_of(text)
    assert all(len(line) <= 80 for line in lines)
    assert all(any(figure in line.split() for line in lines) for figure in (*figures, "DIFFERENT"))
    assert sum(line.count("/") for line in lines) == name.count("/") + 2  # 10/10 and NaN/Inf


def test_peak_memory_is_plausible():
    peak = peak_rss_bytes()
    assert peak is None or 10**6 < peak < 10**12


def test_control_characters_of_names_are_escaped():
    name = "red\x1b[31m\r\x9b2J"
    result = Comparison("a.onnx", "b.onnx", outputs=[output_result(name)])
    text = result.to_text()
    assert "\x1b" not in text and "\r" not in text and "\x9b" not in text
    assert r"red\x1b[31m\r\x9b2J" in text
