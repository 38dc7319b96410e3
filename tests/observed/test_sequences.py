import collections

import pytest

from tests.observed.sequences import run_sequence


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_random_sequences_of_runs():
    counts = collections.Counter()
    for seed in range(6):
        run_sequence(seed, 250, counts)
    assert counts["runs of entry"] > 500
    assert counts["folds"] > 50
