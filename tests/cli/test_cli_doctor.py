"""Test that ``onnxfold doctor`` describes the installation for bug reports."""

import importlib.metadata
import json
import platform

import onnxruntime as ort
import pytest

from onnxfold.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_json_describes_packages_system_and_caches(capsys, home):
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for package in ("onnxfold", "onnx", "onnx-ir", "onnxruntime", "numpy"):
        assert document["packages"][package] == importlib.metadata.version(package)
    assert platform.python_version() in document["system"]["Python"]
    assert document["system"]["providers"].split(", ") == ort.get_available_providers()
    assert set(document["backends"]) == {"iree", "onnx-mlir"}
    assert document["caches"]["sessions"].startswith(str(home / "onnxfold" / "sessions"))


def test_text_lists_packages(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "packages"
    version = importlib.metadata.version("onnxruntime")
    assert any(line.split() == ["onnxruntime", version] for line in lines)


def test_missing_home_folder(capsys, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/nonexistent")
    assert main(["doctor"]) == 0
    assert "/nonexistent/.cache/onnxfold/sessions (empty)" in capsys.readouterr().out
