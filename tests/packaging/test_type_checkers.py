"""Test that type checkers accept all functions and options, and find wrong names and values."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onnxfold
from onnxfold.api.options import Options
from onnxfold.tools.comparison import compare

HERE = Path(__file__).parent / "typed"
ROOT = HERE.parent.parent.parent
ACCEPTED = HERE / "every_option.py"
WRONG = HERE / "wrong.py"


def test_mypy_finds_only_wrong_lines(tmp_path):
    """CONTRIBUTING.md has the command that runs pyright on the same files."""
    pytest.importorskip("mypy")
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, str(ACCEPTED), str(WRONG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = re.findall(r"^.*?(\w+\.py):(\d+): error: .*$", done.stdout, re.MULTILINE)
    lines = WRONG.read_text().splitlines()
    wrong = {(WRONG.name, str(k)) for k, line in enumerate(lines, 1) if line.endswith("  # wrong")}
    assert len(wrong) > 30
    assert set(errors) == wrong, done.stdout + done.stderr


def test_script_has_every_function_and_option():
    text = ACCEPTED.read_text()
    for name in onnxfold.__all__:
        assert re.search(rf"\b{name}\b", text), name
    names = {*Options.__dataclass_fields__}
    functions = (onnxfold.optimize_file, onnxfold.split, onnxfold.save, onnxfold.batch, compare)
    sessions = (onnxfold.Session.__init__, onnxfold.InferenceSession.__init__)
    for function in (*functions, *sessions, onnxfold.simplify, onnxfold.slim):
        parameters = inspect.signature(function).parameters.values()
        names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    missing = {name for name in names - {"plan"} if not re.search(rf"\b{name}=", text)}
    assert not missing
