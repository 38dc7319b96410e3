"""The oldest Python and the oldest dependencies that pyproject.toml admits are enough."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_the_suite_with_the_oldest_dependencies(tmp_path: Path) -> None:
    uv = pytest.importorskip("uv").find_uv_bin()
    oldest = importlib.metadata.metadata("onnxfold")["Requires-Python"].removeprefix(">=")
    found = run(uv, "python", "find", "--no-python-downloads", oldest)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    bin_folder = tmp_path / "venv" / "bin"
    made = run(uv, "venv", "--seed", "--python", found.stdout.strip(), tmp_path / "venv")
    assert made.returncode == 0, made.stderr
    install = (uv, "pip", "install", "--python", bin_folder / "python")
    installed = run(*install, "--resolution", "lowest-direct", "--editable", f"{ROOT}[dev]")
    assert installed.returncode == 0, installed.stderr
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    done = run(bin_folder / "python", "-m", "pytest", "-n", "2", env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout[-5000:]


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, **options)
