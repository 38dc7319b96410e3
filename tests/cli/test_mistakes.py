"""Typical mistakes: each gives one line with cause and remedy, exit code 2, and no file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

MODELS = Path(__file__).parents[2] / "models"
FILES = {
    "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n",
    "page.onnx": b"<!DOCTYPE html><html></html>",
    "checkpoint.pt": b"PK\x03\x04" + bytes(100),
    "checkpoint.pkl": b"\x80\x02}q\x00.",
    "keras.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "mobile.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(100),
    "mobile.ort": b"\x1c\x00\x00\x00ORTM" + bytes(100),
    "frozen.pb": b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder",
    "model.onnx.gz": b"\x1f\x8b\x08" + bytes(100),
    "weights.safetensors": (20).to_bytes(8, "little") + b'{"a": [1, 2, 3, 4] }' + bytes(100),
    "empty.onnx": b"",
    "text.onnx": b"hello, world\n",
    "short.bin": bytes(100),
    "text.npz": b"hello",
    "bad_rules.py": b"def (",
    "no_rules.py": b"x = 1\n",
}
EXTERNAL = {
    "gone.onnx": {"location": "weights.bin"},
    "outside.onnx": {"location": "../weights.bin"},
    "absolute.onnx": {"location": "/etc/passwd"},
    "short.onnx": {"location": "short.bin"},
    "negative.onnx": {"location": "short.bin", "offset": "-1"},
}
FEEDS = {"input_ids": (1, 3), "encoder_hidden_states": (1, 3, 64), "encoder_attention_mask": (1, 3)}
OPTIMIZE = "optimize model.onnx -o out.onnx "
SPLIT = "split model.onnx -o bundle --runtime-const "
MISTAKES = {
    # files that are no models
    "optimize missing.onnx -o out.onnx": "missing.onnx: no such file",
    "optimize folder -o out.onnx": "folder: cannot be opened: Is a directory",
    "optimize empty.onnx -o out.onnx": "empty.onnx: the file is empty",
    "optimize text.onnx -o out.onnx": "text.onnx: not an ONNX model",
    "optimize truncated.onnx -o out.onnx": "bytes, 99977 are left",
    "optimize lfs.onnx -o out.onnx": "run `git lfs pull`",
    "optimize page.onnx -o out.onnx": "an HTML page",
    "optimize checkpoint.pt -o out.onnx": "a zip archive (of PyTorch?), not an ONNX model: export",
    "optimize checkpoint.pkl -o out.onnx": "export the model to ONNX",
    "optimize keras.h5 -o out.onnx": "tf2onnx",
    "optimize mobile.tflite -o out.onnx": "a TensorFlow Lite model",
    "optimize mobile.ort -o out.onnx": "the ORT format",
    "optimize frozen.pb -o out.onnx": "a TensorFlow model must be converted first",
    "optimize model.onnx.gz -o out.onnx": "decompress it first",
    "optimize weights.safetensors -o out.onnx": "it holds weights, not a model",
    "inspect missing.onnx": "missing.onnx: no such file",
    "compare model.onnx missing.onnx": "missing.onnx: no such file",
    "bench missing.onnx": "missing.onnx: no such file",
    "adapters model.onnx text.npz": "text.npz: not an .npz file, or damaged",
    "batch model.onnx -o out --feeds missing.npz": "missing.npz: no such file",
    "batch model.onnx -o out --rules missing.py": "missing.py: no such file",
    "batch model.onnx -o out --custom-ops no.so": "no.so: no such file",
    "batch model.onnx -o out --journal text.onnx": "text.onnx: it is no journal of a batch",
    "adapters missing folder": "missing: no such file",
    # data files
    "optimize gone.onnx -o out.onnx": "external data file 'weights.bin' cannot be opened: No such",
    "optimize outside.onnx -o out.onnx": "'../weights.bin' leads out of the model's folder",
    "optimize absolute.onnx -o out.onnx": "'/etc/passwd' is an absolute path",
    "optimize short.onnx -o out.onnx": "'short.bin' has 100 bytes, the tensor needs 256",
    "optimize negative.onnx -o out.onnx": "offset '-1' is not a non-negative number",
    # models that do not run
    "optimize undefined.onnx -o out.onnx": "node 'add': input 'z' is not defined anywhere",
    "optimize unknown.onnx -o out.onnx --check 1": "No Op registered for Addd",
    "optimize custom.onnx -o out.onnx --check 1": "my.ops:Foo(-1) is not a registered",
    "compare custom.onnx custom.onnx": "--custom-ops loads the library of such ops",
    "bench custom.onnx": "--custom-ops loads the library of such ops",
    # places
    "optimize model.onnx": "give -o OUT",
    "model.onnx other.onnx": "other.onnx exists: give it with -o, or add --force",
    "model.onnx -": "standard input and output are not supported",
    "- out.onnx": "standard input and output are not supported",
    "optimize model.onnx out.onnx -o out2.onnx": "OUT is given twice",
    "optimize model.onnx -o no/out.onnx": "cannot be written: its folder does not exist",
    "optimize model.onnx -o folder": "folder: cannot be written: it is a folder",
    "optimize model.onnx -o /proc/out.onnx": "/proc/out.onnx: cannot be written",
    OPTIMIZE + "--report model.onnx": "must end in .html or .json",
    OPTIMIZE
    + "--report no/page.html": "no/page.html: cannot be written: its folder does not exist",
    OPTIMIZE + "--dump-ir model.onnx": "model.onnx: cannot be written: Not a directory",
    OPTIMIZE + "--external-data-name ../w": "must be a plain file name",
    "split model.onnx -o model.onnx --runtime-const encoder_*": "model.onnx: cannot be written",
    "bench folder": "not a bundle",
    "batch folder -o out": "folder: there is no model of that name",
    # names
    OPTIMIZE + "--dim bacth=1": "no input has a dimension 'bacth'; did you mean 'batch'?",
    OPTIMIZE + "--keep-dim bacth": "no input has a dimension 'bacth'; did you mean 'batch'?",
    OPTIMIZE + "--check-dim bacth=1": "no input has a dimension 'bacth'; did you mean 'batch'?",
    OPTIMIZE + "--input-shape input_id:1,3": "no input 'input_id'; did you mean 'input_ids'?",
    OPTIMIZE + "--disable attension": "neither a rule nor a rule set; did you mean 'attention'?",
    OPTIMIZE + "--enable attension": "neither a rule nor a rule set; did you mean 'attention'?",
    OPTIMIZE + "--passes constant-prop": "no pass 'constant-prop'; did you mean",
    OPTIMIZE + "--target tensorrt": "'tensorrt' is not 'onnxruntime'",
    OPTIMIZE + "--fold-every": "--fold-all",
    "optimise model.onnx out.onnx": "No such command 'optimise'",
    "explain model.onnx --value nothing": "no constant node matches 'nothing'",
    "explain model.onnx --why nothing": "no node has the name 'nothing'",
    "compare model.onnx model.onnx --dim bacth=3": "no input has a dimension 'bacth'",
    "split model.onnx -o bundle": "model.onnx: no runtime constant is named (--runtime-const)",
    SPLIT
    + "encoder_hiden_states": "model.onnx: no input is called 'encoder_hiden_states'; did you mean",
    SPLIT + "encoder_* --backend tvm": "there is no backend 'tvm'; there are auto, iree",
    SPLIT
    + "encoder_* --nominal bacth=3": "no input has a dimension 'bacth'; did you mean 'batch'?",
    "compare model.onnx model.onnx --provider CUDA": "has no provider 'CUDA' here; it has: ",
    "compare model.onnx model.onnx --custom-ops no.so": "no.so: no such file",
    "compare model.onnx model.onnx --custom-ops model.onnx": "not a library of custom ops: ",
    "bench model.onnx --provider CUDA": "onnxruntime has no provider 'CUDA' here; it has: ",
    # sizes, types and values
    OPTIMIZE + "-O 3": "3 is not in the range 0<=x<=2",
    OPTIMIZE + "--dim batch": "'batch' is not of the form batch=2",
    OPTIMIZE + "--input-shape input_ids:1,3,4": "input 'input_ids' has 2 axes, not 3",
    OPTIMIZE + "--input-shape input_ids=1,3": "is not of the form x:1,3,224,224",
    OPTIMIZE + "--dim batch=1 --keep-dim batch": "dimension 'batch' cannot be 1 and be kept",
    OPTIMIZE + "--max-growth many": "'many' is not a size such as 4096, 512MB or 1.5GiB",
    OPTIMIZE + "--memory-limit 0": "the memory limit must be positive, got 0",
    OPTIMIZE + "--check -1": "-1 is not in the range x>=0",
    OPTIMIZE + "--precision double": "'double' is not one of 'exact', 'wide'",
    OPTIMIZE + "--plan --report page.html": "--report contradicts --plan",
    OPTIMIZE + "--rules missing.py": "missing.py: cannot load the rules: no such file",
    OPTIMIZE + "--rules bad_rules.py": "bad_rules.py: cannot load the rules: invalid syntax",
    OPTIMIZE + "--rules no_rules.py": "no_rules.py: there is no rule in it",
    OPTIMIZE + "--feeds missing.npz": "missing.npz: cannot read the feeds: no such file",
    OPTIMIZE + "--feeds text.npz": "text.npz: cannot read the feeds: not an .npz file",
    OPTIMIZE + "--feeds folder": "folder: the folder holds no input_*.pb",
    OPTIMIZE + "--feeds names.npz": "the model has no input 'ids'; it has: input_ids",
    OPTIMIZE + "--feeds few.npz": "the feeds lack the input 'encoder_hidden_states'",
    OPTIMIZE + "--feeds types.npz": "input 'input_ids' is int64, the feed float32",
    OPTIMIZE + "--feeds shapes.npz": "input 'input_ids' has 2 dimensions, the feed 1",
}


def _model(op: str, inputs: list[str], weights: list[TensorProto], domain: str = "") -> object:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    node = helper.make_node(op, inputs, ["y"], name=op.lower(), domain=domain)
    graph = helper.make_graph([node], "g", value[:1], value[1:], weights)
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with a model and all that can be mistaken for one."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copy(MODELS / "t5-decoder.onnx", folder / "model.onnx")
    shutil.copy(MODELS / "swin.onnx", folder / "other.onnx")
    (folder / "truncated.onnx").write_bytes((MODELS / "swin.onnx").read_bytes()[:100_000])
    (folder / "folder").mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    for name, entries in EXTERNAL.items():
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            weight.external_data.add(key=key, value=value)
        onnx.save(_model("Add", ["x", "w"], [weight]), folder / name)
    onnx.save(_model("Add", ["x", "z"], []), folder / "undefined.onnx")
    onnx.save(_model("Addd", ["x", "x"], []), folder / "unknown.onnx")
    onnx.save(_model("Foo", ["x"], [], "my.ops"), folder / "custom.onnx")
    feeds = {name: np.zeros(shape, np.int64) for name, shape in FEEDS.items()}
    feeds["encoder_hidden_states"] = np.zeros(FEEDS["encoder_hidden_states"], np.float32)
    np.savez(folder / "names.npz", ids=np.zeros(3))
    np.savez(folder / "few.npz", input_ids=feeds["input_ids"])
    np.savez(folder / "types.npz", **{**feeds, "input_ids": np.zeros((1, 3), np.float32)})
    np.savez(folder / "shapes.npz", **{**feeds, "input_ids": np.zeros(3, np.int64)})
    return folder


def _content(folder: Path) -> dict[str, int]:
    return {p.as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_there_are_many():
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_told_in_one_line(run, files, monkeypatch, command):
    monkeypatch.chdir(files)
    before, names = _content(files), set(os.listdir(files))
    result = run(*command.split())
    assert result.code == 2, result.err
    assert result.out == ""
    assert result.err.startswith("onnxfold: error: ") and result.err.count("\n") == 1, result.err
    assert MISTAKES[command] in result.err
    assert _content(files) == before and set(os.listdir(files)) == names
