"""What holds on Linux holds without what Windows has not, see `other_system`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What Windows has not, and where it is asked for only where it is there.
ASKED_FOR = {
    "onnxfold/system.py",
    "onnxfold/atomic.py",  # beside HOLDS_FILES
    "onnxfold/lost_pages.py",  # on Linux
    "onnxfold/memory.py",  # where psutil does not tell, or asked for first
    "onnxfold/storage/writer.py",  # asked for first
    "onnxfold/isolated.py",  # asked for first
    "onnxfold/runtime/backends/onnx_mlir/library.py",
    "onnxfold/runtime/backends/onnx_mlir/tool.py",
    "onnxfold/runtime/sessions/store.py",  # behind what says that there is no such folder
}

ORDINARY = [
    ["tests/storage/test_save.py", "tests/storage/test_crash.py"],
    ["tests/storage/test_load.py", "tests/storage/test_outputs.py", "tests/cli/test_signals.py"],
    ["tests/pool/test_pool_spilling.py"],
    ["tests/cli/test_cli_optimize.py", "tests/end_to_end/test_real_models.py", "-k", "not swin"],
]
ALL = [
    ["tests/storage"],
    ["tests/pool"],
    ["tests/cli", "tests/end_to_end"],
    # that one removes a file that its own model still has mapped
    ["tests/compare", "tests/forecast", "-k", "not memory_of_large_models"],
    ["tests/faults/test_kills.py", "tests/batches"],
]


def passes(tests: list[str], folder: Path) -> None:
    pytest.importorskip("filelock")
    plugin = ["-p", "tests.portability.other_system", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugin, "--basetemp", folder / "tests", *tests]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTEST_ADDOPTS": ""}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tests", ORDINARY, ids=lambda tests: tests[0])
def test_without_what_windows_has_not(tests, tmp_path):
    passes(tests, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("tests", ALL, ids=lambda tests: tests[0])
def test_all_without_what_windows_has_not(tests, tmp_path):
    passes(tests, tmp_path)


@pytest.mark.slow
def test_what_windows_has_not_is_known(tmp_path):
    """The types for Windows find each use of what is not there, and each wrong call of its own."""
    command = ["mypy", "--platform", "win32", "--cache-dir", tmp_path]
    found = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    assert errors, found.stdout + found.stderr
    missing = [e for e in errors if "has no attribute" in e or "[no-any-return]" in e]
    assert missing == errors
    assert {line.partition(":")[0].replace(os.sep, "/") for line in missing} <= ASKED_FOR
