"""A short run of ended compilations; ``python -m tests.faults --compilations N`` makes many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_nothing_of_a_compilation_is_left() -> None:
    # in a process of its own: threads of other tests would be missing in its forks
    command = [sys.executable, "-m", "tests.faults", "--compilations", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ended, 0 faults" in done.stdout
