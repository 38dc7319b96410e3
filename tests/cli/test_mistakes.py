"""Test that commands with typical mistakes print one line, exit with 2, and write no file."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_table import MODELS, external, parse

FILES = {
    "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n",
    "page.onnx": b"<!DOCTYPE html><html></html>",
    "checkpoint.pt": b"PK\x03\x04" + bytes(100),
    "checkpoint.pkl": b"\x80\x02}q\x00.",
    "keras.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "mobile.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(100),
    "mobile.ort": b"\x1c\x00\x00\x00ORTM" + bytes(100),
    "model.json": b'{ "irVersion": "10" }',
    "frozen.pb": b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder",
    "model.onnx.gz": b"\x1f\x8b\x08" + bytes(100),
    "weights.safetensors": (20).to_bytes(8, "little") + b'{"a": [1, 2, 3, 4] }' + bytes(100),
    "empty.onnx": b"",
    "text.onnx": b"hello, world\n",
    "short.bin": bytes(100),
    "text.npz": b"hello",
    "bad_rules.py": b"def (",
    "raising_rules.py": b"import os\n\nopen(os.devnull + os.sep)\n",
    "exiting_rules.py": b"import sys\n\nsys.exit(0)\n",
    "typed_rules.py": b"""
from onnxfold.rewrite import op, rule

@rule(benefit="high")
def relu_of_relu(x):
    return op.Relu(op.Relu(x)) >> op.Relu(x)
""",
    "misspelt_rules.py": b"""
from onnxfold.rewrite import op, rule

@rule
def relu_of_relu(x):
    return op.Relu(op.Relu(x)) >> op.Relu(xx)
""",
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


TEXT = Path(__file__).with_name("mistakes.txt").read_text()
MISTAKES = re.findall(r"^(?!#|    )(.*)\n    (.+)$", TEXT, re.MULTILINE)


def _model(node: str) -> onnx.ModelProto:
    model = parse(f"g (float[64] x) => (float[64] y) {{ {node} }}", 17)
    model.opset_import.add(domain="my.ops", version=1)
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Return a folder with valid models and the files that the commands in mistakes.txt read."""
    folder = tmp_path_factory.mktemp("mistakes")
    shutil.copy(MODELS / "t5-decoder.onnx", folder / "model.onnx")
    shutil.copy(MODELS / "swin.onnx", folder / "other.onnx")
    (folder / "truncated.onnx").write_bytes((MODELS / "swin.onnx").read_bytes()[:100_000])
    (folder / "folder").mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    for name, entries in EXTERNAL.items():
        model = _model("[add] y = Add(x, w)")
        model.graph.initializer.append(external("w", [64], **entries))
        onnx.save(model, folder / name)
    onnx.save(_model("y = Softplus(x)"), folder / "in.onnx")
    onnx.save(_model("[add] y = Add(x, z)"), folder / "undefined.onnx")
    onnx.save(_model("[addd] y = Addd(x, x)"), folder / "unknown.onnx")
    onnx.save(_model("[foo] y = my.ops.Foo(x)"), folder / "custom.onnx")
    feeds = {name: np.zeros(shape, np.int64) for name, shape in FEEDS.items()}
    feeds["encoder_hidden_states"] = np.zeros(FEEDS["encoder_hidden_states"], np.float32)
    np.savez(folder / "names.npz", ids=np.zeros(3))
    np.savez(folder / "few.npz", input_ids=feeds["input_ids"])
    np.savez(folder / "types.npz", **{**feeds, "input_ids": np.zeros((1, 3), np.float32)})
    np.savez(folder / "shapes.npz", **{**feeds, "input_ids": np.zeros(3, np.int64)})
    return folder


def _content(folder: Path) -> dict[str, int]:
    return {p.as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_mistakes_print_one_line(run, files, monkeypatch, command, message):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # rules are Python files
    monkeypatch.chdir(files)
    before = _content(files)
    names = set(os.listdir(files))
    result = run(*command.split())
    assert result.code == 2, result.err
    assert result.out == ""
    assert result.err.startswith("onnxfold: error: ") and result.err.count("\n") == 1, result.err
    assert message in result.err
    assert _content(files) == before and set(os.listdir(files)) == names
