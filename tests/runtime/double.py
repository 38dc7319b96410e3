import shutil
import sys
from pathlib import Path

import pytest

_DOUBLE = Path(__file__).parent / "onnx_mlir" / "compiler_double.py"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python_program(path: Path, source: Path) -> Path:
    return program(path, f'exec "{sys.executable}" "{source}" "$@"')


def written_double(path: Path) -> Path:
    return python_program(path, _DOUBLE)


def use_double(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the compiler of onnx-mlir by its double, or skip the test without a C compiler.

    A script in ``folder`` starts the double.
    """
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR", str(written_double(folder / "onnx-mlir")))
