"""Short runs of what ``python -m tests.faults --folds`` does, and of many processes and threads."""

from __future__ import annotations

import pytest

from .folds import in_turns, killed, worked


def test_a_killed_process_leaves_neither_a_lock_nor_a_file(tmp_path) -> None:
    outcome = killed(20, 7, tmp_path / "folds")
    assert not outcome.faults
    assert outcome.counts["being written, or left behind, just then"]


def test_threads_fold_a_setting_once(tmp_path) -> None:
    assert not in_turns(20, 16, 2.0, tmp_path / "folds").faults


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_a_hundred_threads_for_a_minute(tmp_path, shared) -> None:
    assert not in_turns(100, 16, 60.0, tmp_path / "folds" if shared else None).faults


@pytest.mark.slow
def test_eight_workers_share_one_fold_and_its_pages(tmp_path) -> None:
    found = worked(8, 8192, tmp_path)
    assert found.folds == 1
    assert max(found.private_bytes) < 0.05 * found.folded_bytes


@pytest.mark.slow
def test_two_hundred_killed_processes(tmp_path) -> None:
    assert not killed(200, 0, tmp_path / "folds").faults
