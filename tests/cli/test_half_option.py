"""``--half`` on the command line: what it keeps, and that the commands name it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float16[N, 2] x) => (float16[N, 2] y) <float[2] w = {0.1, 2}> {
    h = Cast <to = 10> (w)
    t = Mul(x, h)
    u = Identity(t)
    y = Mul(u, x)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def test_carried_keeps_the_roundings(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert run("optimize", model, "-o", out).code == 0
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Mul", "Mul"]
    result = run("optimize", model, "-o", out, "--half", "carried", "--json")
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Cast", "Mul", "Identity", "Mul"]
    (kept,) = json.loads(result.out)["kept"]
    assert kept["op_type"] == "Cast" and "rounded to float16" in kept["reason"]
    assert run("compare", model, out, "--exact").code == 0
    assert json.loads(result.out)["withheld"] == {"identity": 1}


def test_explain_takes_it_and_refuses_other_words(run, model: Path) -> None:
    by_default = json.loads(run("explain", model, "--json").out)["decisions"]
    assert [d["op_type"] for d in by_default if d["folded"]] == ["Cast"]
    carried = json.loads(run("explain", model, "--half", "carried", "--json").out)["decisions"]
    assert not [d for d in carried if d["folded"]]
    assert run("explain", model, "--half", "float32").code == 2


def test_compare_names_it(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    run("optimize", model, "-o", out)
    result = run("compare", model, out)
    assert "--half carried" in result.out
