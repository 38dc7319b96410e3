import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAKE = """
from pathlib import Path
import numpy as np
from tests.benchmarks.benchmark_models import transformer
size = int(sys.argv[2])
transformer(Path(sys.argv[1]), size, size, 2, size, np.float32)
"""
# A small model first: what is imported and made once in a process is not counted.
OPTIMIZE = """
import onnxfold
from onnxfold.memory import peak_rss_bytes as peak
small, large, result = sys.argv[1:]
onnxfold.optimize_file(small, result)
start = peak()
onnxfold.optimize_file(large, result)
print((peak() - start) / 2**20)
"""


def run(code: str, *arguments) -> str:
    command = [sys.executable, "-c", "import sys\n" + code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_transposed_weights_are_folded_in_little_memory(tmp_path) -> None:
    """257 MiB in 18 weights; looking at one element of each would take 32 MiB by itself."""
    small, large = tmp_path / "small.onnx", tmp_path / "large.onnx"
    run(MAKE, small, 8)
    run(MAKE, large, 2048)
    grown = float(run(OPTIMIZE, small, large, tmp_path / "out.onnx"))
    assert grown < 35, grown
