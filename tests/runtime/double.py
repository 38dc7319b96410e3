"""The double of onnx-mlir's compiler, for tests of all backends."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

_DOUBLE = Path(__file__).parent / "onnx_mlir" / "compiler_double.py"


def written_double(folder: Path) -> Path:
    """Write a script into the folder that starts the double, and return its path."""
    script = folder / "onnx-mlir"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{_DOUBLE}" "$@"\n')
    script.chmod(0o755)
    return script


def use_double(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the double, started by a script in the folder, be onnx-mlir's compiler."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR", str(written_double(folder)))
