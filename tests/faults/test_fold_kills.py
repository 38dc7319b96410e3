"""Short runs of what ``python -m tests.faults --folds`` does, and of many processes."""

from __future__ import annotations

import pytest

from .folds import killed, worked


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
