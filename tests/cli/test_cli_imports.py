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
    unneeded = ["onnxruntime", "rich", "onnx.reference", "onnxfold.comparison", "sympy.core"]
    assert not loaded.intersection(unneeded)


def test_symbolic_arithmetic_works_when_it_is_needed():
    code = """
from onnxfold.lazy_imports import defer_symbolic_arithmetic
defer_symbolic_arithmetic()
import sys, onnx_ir
assert "sympy.core" not in sys.modules
assert onnx_ir.SymbolicDim("past + seq").evaluate({"past": 2, "seq": 3}) == 5
assert str(onnx_ir.SymbolicDim("n") + 1) == "n + 1"
"""
    assert "sympy.core" in loaded_after(code)
