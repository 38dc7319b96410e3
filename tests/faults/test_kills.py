"""A short run of the kills; ``python -m tests.faults`` makes many."""

from __future__ import annotations

from .kills import SIGNALS, strikes

COUNT = 9


def test_nothing_is_lost_and_nothing_left(tmp_path) -> None:
    """On a busy machine all strikes of a round may come too late; then there is another round."""
    ended = False
    for seed in range(7, 12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = strikes(COUNT, seed, folder)
        assert not outcome.faults
        assert sum(outcome.counts[f"output {state}"] for state in ("old", "new", "none")) == COUNT
        ended = any(f"{number.name}: ended" in outcome.counts for number in SIGNALS)
        if ended:
            break
    assert ended
