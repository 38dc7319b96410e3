"""Python started in the project's folder imports onnxfold from there, installed or not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys

sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in f.__module__]
import onnxfold

assert onnxfold.__file__.startswith(sys.argv[1])
model = onnxfold.optimize("models/swin.onnx")
assert model.graph.num_nodes() < 200
"""


def test_the_rules_are_found():
    command = [sys.executable, "-c", PROGRAM, str(ROOT)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pyproject_lists_every_package():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = [init.parent.relative_to(ROOT) for init in ROOT.glob("onnxfold/**/__init__.py")]
    expected = {".".join(folder.parts) for folder in folders} | {"onnxfold.rules"}
    expected |= {
        ".".join(["onnxfold", *init.parent.relative_to(ROOT).parts])
        for init in ROOT.glob("rules/**/__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == expected
