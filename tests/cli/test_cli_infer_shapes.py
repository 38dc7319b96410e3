"""Test the files, table and JSON of ``onnxfold infer-shapes``."""

import json
import os

import onnx
from model_table import saved


def names(path) -> set[str]:
    return {info.name for info in onnx.load(path).graph.value_info}


def test_types_are_recorded(done, tiny, tmp_path):
    out = tmp_path / "out.onnx"
    result = done("infer-shapes", tiny, "-o", out, "--no-fsync")
    assert result.err == ""
    rows = [line.split() for line in result.out.splitlines()]
    assert ["dtype", "0", "1"] in rows and ["all", "values", "1", "1"] in rows
    assert "recorded 1 type in" in result.out
    assert names(out) == {"v"}
    changed = onnx.load(out)
    del changed.graph.value_info[:]
    assert changed == onnx.load(tiny)


def test_in_place(done, tiny):
    assert done("infer-shapes", tiny, "-o", tiny, "-q").out == ""
    assert names(tiny) == {"v"}
    assert os.listdir(tiny.parent) == [tiny.name]


def test_json(done, swin, tmp_path):
    result = done("infer-shapes", swin, "-o", tmp_path / "out.onnx", "--json")
    document = json.loads(result.out)
    assert document["source"] == str(swin) and document["target"] == str(tmp_path / "out.onnx")
    assert document["after"] == dict.fromkeys(
        ("dtype", "rank", "sizes", "static"), document["values"]
    )
    assert document["not_inferred"] == {}


def test_ops_without_inference_are_listed(done, tmp_path):
    text = "g (float[N] x) => (float[N] y) { t = custom.F(x) u = Relu(t) y = Neg(u) }"
    source = saved(text, tmp_path / "in.onnx")
    result = done("infer-shapes", source, "-o", tmp_path / "out.onnx")
    assert "1 custom::F" in result.out and "Relu" not in result.out


def test_data_files(done, swin, tmp_path):
    source = tmp_path / "in.onnx"
    out = tmp_path / "out.onnx"
    onnx.save(onnx.load(swin), source, save_as_external_data=True, location="in.bin")
    done("infer-shapes", source, "-o", out, "--share-weights", "-q")
    assert sorted(os.listdir(tmp_path)) == ["in.bin", "in.onnx", "out.onnx"]
    done("infer-shapes", source, "-o", out, "-q")
    assert sorted(os.listdir(tmp_path)) == ["in.bin", "in.onnx", "out.onnx", "out.onnx.data"]
    done("infer-shapes", source, "-o", source, "-q")
    assert names(source) == names(out)
    assert done("compare", source, out).out
