"""Short runs of what ``python -m tests.faults`` does, which kills and ends many processes."""

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
    """Each fork collects garbage; objects of the tests before take up to a second each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_nothing_is_lost_and_nothing_left(tmp_path) -> None:
    """On a busy machine all strikes of a round may come too late; then there is another round."""
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
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_nothing_of_a_compilation_is_left() -> None:
    # in a process of its own: threads of other tests would be missing in its forks
    command = [sys.executable, "-m", "tests.faults", "--compilations", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ended, 0 faults" in done.stdout


def test_a_killed_process_leaves_neither_a_lock_nor_a_file(tmp_path) -> None:
    outcome = killed(20, 7, tmp_path / "folds")
    assert not outcome.faults
    assert outcome.counts["being written, or left behind, just then"]


@pytest.mark.slow
def test_eight_workers_share_one_fold_and_its_pages(tmp_path) -> None:
    found = worked(8, 8192, tmp_path)
    assert found.folds == 1
    assert max(found.private_bytes) < 0.05 * found.folded_bytes


@pytest.mark.slow
def test_two_hundred_killed_processes(tmp_path) -> None:
    assert not killed(200, 0, tmp_path / "folds").faults
