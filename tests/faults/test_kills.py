"""Test killed and ended processes, in shorter runs than ``python -m tests.faults``."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .folds import killed, worked
from .kills import SIGNALS, strikes

ROOT = Path(__file__).parents[2]
COUNT = 9


@pytest.fixture(autouse=True)
def frozen_garbage() -> Iterator[None]:
    """Freeze the objects of earlier tests, because `forked` collects garbage before each fork.

    These objects would make each collection take up to a second.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_ended_commands_lose_no_model_and_leave_no_file(tmp_path) -> None:
    """Repeat the round if all signals arrive too late, which can happen on a busy machine."""
    ended = False
    for seed in range(7, 12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = strikes(COUNT, seed, folder)
        assert not outcome.faults
        assert sum(outcome.counts[f"output {state}"] for state in ("old", "new", "none")) == COUNT
        ended = any(f"{name}: ended" in outcome.counts for name in SIGNALS)
        if ended:
            break
    assert ended


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="requires /proc")
def test_ended_compilations_leave_no_files_and_processes() -> None:
    # in a new process, because forks of this process lack the threads of other tests
    command = [sys.executable, "-m", "tests.faults", "--compilations", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ended, 0 faults" in done.stdout


def test_killed_processes_leave_neither_locks_nor_files(tmp_path) -> None:
    outcome = killed(20, 7, tmp_path / "folds")
    assert not outcome.faults
    assert outcome.counts["temporary files after a kill"]


@pytest.mark.slow
def test_eight_workers_share_one_fold_and_its_pages(tmp_path) -> None:
    found = worked(8, 8192, tmp_path)
    assert found.folds == 1
    assert max(found.private_bytes) < 0.05 * found.folded_bytes


@pytest.mark.slow
def test_two_hundred_killed_processes_cause_no_fault(tmp_path) -> None:
    assert not killed(200, 0, tmp_path / "folds").faults
