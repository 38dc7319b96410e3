"""A short run of the kills; ``python -m tests.faults`` makes many."""

from __future__ import annotations

from .kills import SIGNALS, strikes

COUNT = 9


def test_nothing_is_lost_and_nothing_left(tmp_path) -> None:
    outcome = strikes(COUNT, 7, tmp_path)
    assert not outcome.faults
    assert sum(outcome.counts[f"output {state}"] for state in ("old", "new", "none")) == COUNT
    assert any(f"{number.name}: ended" in outcome.counts for number in SIGNALS)
