from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["numpy", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes", "sympy", "rich", "google.protobuf"]


def loaded_after(code: str, *args: object) -> set[str]:
    """The modules that a fresh process has loaded after the code."""
    report = "import sys; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", f"{code}\n{report}", *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import onnxfold",
        "import onnxfold.cli",
        "from onnxfold.cli import main; main(['--help'])",
        "from onnxfold.cli import main; main(['optimize', '--help'])",
        "from onnxfold.cli import main; main(['--version'])",
    ],
)
def test_help_imports_nothing_heavy(code):
    assert not loaded_after(code).intersection(HEAVY)


def test_simple_folding_needs_no_onnxruntime(tiny, tmp_path):
    code = "import sys; from onnxfold.cli import main; main(['optimize', *sys.argv[1:], '--json'])"
    loaded = loaded_after(code, tiny, "-o", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").exists()
    assert not loaded.intersection(["onnxruntime", "rich", "onnx.reference", "onnxfold.compare"])
