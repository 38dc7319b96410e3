"""`onnxfold inspect A B`."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfold

FIRST = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 2] x, float[n, 2] gone) => (float[n, 2] y) <
    float[2] same = {1, 2}, float[2] changed = {1, 2}, float[3] old_name = {5, 6, 7},
    float[2] reshaped = {1, 2}, float[4] removed = {1, 2, 3, 4}
> {
    c = Constant <value = float[2] {8, 9}> ()
    a = Add (x, same)
    y = Mul (a, c)
}
"""
SECOND = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[m, 2] x) => (float[n, 2] y, float[n, 2] a) <
    float[2] same = {1, 2}, float[2] changed = {1, 3}, float[3] new_name = {5, 6, 7},
    float[1, 2] reshaped = {1, 2}, float[5] added = {1, 2, 3, 4, 5}
> {
    c = Constant <value = float[2] {8, 9}> ()
    a = local.f (x, same)
    y = Add (a, c)
}
<domain: "local", opset_import: ["" : 21]>
f (p, q) => (r) { r = Add (p, q) }
"""


@pytest.fixture
def two(tmp_path):
    for name, text in (("a.onnx", FIRST), ("b.onnx", SECOND)):
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
    return tmp_path / "a.onnx", tmp_path / "b.onnx"


def test_all_that_can_differ(run, two):
    document = json.loads(run("inspect", *two, "--json").out)
    assert document["ops"] == {
        "Add": [1, 2],
        "Constant": [1, 1],
        "Mul": [1, 0],
        "local::f": [0, 1],
    }
    changes = {c["name"]: (c["before"], c["after"]) for c in document["header"]}
    assert changes == {
        "IR version": ("8", "10"),
        "opset ai.onnx": ("17", "21"),
        "opset local": (None, "1"),
        "functions": (None, "1"),
    }
    assert [(c["name"], c["before"], c["after"]) for c in document["inputs"]] == [
        ("x", "float32[n,2]", "float32[m,2]"),
        ("gone", "float32[n,2]", None),
    ]
    assert [(c["name"], c["before"]) for c in document["outputs"]] == [("a", None)]
    kinds = {t["name"]: t["kind"] for t in document["tensors"]}
    assert kinds == {
        "changed": "changed",
        "reshaped": "changed",
        "old_name": "renamed",
        "removed": "removed",
        "added": "added",
    }
    assert document["tensors"][0]["name"] == "added"
    assert (document["same_tensors"], document["same_bytes"]) == (2, 16)
    renamed = next(t for t in document["tensors"] if t["kind"] == "renamed")
    assert renamed["after"]["name"] == "new_name"


def test_the_text(run, two):
    result = run("inspect", *two)
    assert result.code == 0
    assert "old_name -> new_name" in result.out
    assert "2 tensors are the same (16 bytes), 2 changed" in result.out


def test_a_model_and_itself(run, swin):
    document = json.loads(run("inspect", swin, swin, "--json").out)
    assert document["tensors"] == document["header"] == document["inputs"] == []
    assert all(before == after for before, after in document["ops"].values())
    assert "change" in run("inspect", swin, swin).out


def test_one_bit_of_a_weight_in_a_data_file(run, swin, tmp_path):
    model = onnx.load(swin)
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data")
    largest = max(model.graph.initializer, key=lambda t: t.ByteSize())
    array = onnx.numpy_helper.to_array(largest).copy()
    array.reshape(-1).view(np.uint32)[-1] ^= 1
    largest.CopyFrom(onnx.numpy_helper.from_array(array, largest.name))
    onnx.save(model, tmp_path / "b.onnx")
    document = json.loads(run("inspect", tmp_path / "a.onnx", tmp_path / "b.onnx", "--json").out)
    assert [(t["name"], t["kind"]) for t in document["tensors"]] == [(largest.name, "changed")]


def test_what_optimize_did_to_a_real_model(run, swin, tmp_path):
    report = onnxfold.optimize_file(swin, tmp_path / "out.onnx")
    document = json.loads(run("inspect", swin, tmp_path / "out.onnx", "--json").out)
    assert document["bytes_after"] == report.bytes_after
    after = {op: counts[1] for op, counts in document["ops"].items() if counts[1]}
    assert after == report.nodes_after
    assert document["inputs"] == document["outputs"] == []
    assert {t["kind"] for t in document["tensors"]} >= {"removed", "added"}
    assert "all ops" in run("inspect", swin, tmp_path / "out.onnx").out
