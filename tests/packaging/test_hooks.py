"""Test the pre-commit hook and the GitHub Action, which other repositories run."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfold

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_hook_optimizes_in_place(tmp_path: Path):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (tmp_path / "a folder").mkdir()
    model = tmp_path / "a folder" / "swin.onnx"
    shutil.copy(ROOT / "models" / "swin.onnx", model)
    command = [*shlex.split(hook["entry"]), str(model), str(model)]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    onnxfold.optimize_file(ROOT / "models" / "swin.onnx", tmp_path / "expected.onnx")
    assert model.read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    shutil.copy(ROOT / "models" / "swin.onnx", model)
    failing = subprocess.run(
        [*shlex.split(hook["entry"]), str(tmp_path / "bad.onnx"), str(model)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert failing.returncode == 2
    assert "bad.onnx: not an ONNX model" in failing.stderr
    assert model.read_bytes() == (tmp_path / "expected.onnx").read_bytes()


def test_action(tmp_path: Path):
    action = yaml.safe_load((ROOT / ".github/actions/optimize/action.yml").read_text())
    step = action["runs"]["steps"][-1]
    folder = tmp_path / "models" / "deep"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "models" / "swin.onnx", folder)
    inputs = {"MODELS": "models/**/*.onnx", "OUTPUT": "out", "CHECK": "1", "OPTIONS": "-O 0"}
    assert inputs.keys() == step["env"].keys()
    subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env={**ENVIRONMENT, **inputs}, check=True
    )
    assert (tmp_path / "out" / "deep" / "swin.onnx").exists()
