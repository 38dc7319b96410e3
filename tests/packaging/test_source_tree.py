"""Python started in the project's folder imports onnxfold from there, installed or not."""

import subprocess
import sys
from pathlib import Path

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
