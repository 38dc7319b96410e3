"""A few seconds of the net: what was found once, and some files that are new at every change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_hostile_files() -> None:
    """Every file is optimized or refused in one line; `python -m tests.hostile` runs more."""
    command = [sys.executable, "-m", "tests.hostile", "--own", "--files", "40", "--seconds", "30"]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "-O1: done" in result.stdout and "-O1: refused" in result.stdout
