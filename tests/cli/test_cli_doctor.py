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
    found = json.loads(capsys.readouterr().out)
    for package in ("onnxfold", "onnx", "onnx-ir", "onnxruntime", "numpy"):
        assert found["packages"][package] == importlib.metadata.version(package)
    assert platform.python_version() in found["system"]["Python"]
    assert found["system"]["providers"].split(", ") == ort.get_available_providers()
    assert set(found["backends"]) == {"iree", "onnx-mlir"}
    assert found["caches"]["sessions"].startswith(str(home / "onnxfold" / "sessions"))


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
