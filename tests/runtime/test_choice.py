"""Test that `auto` measures its folds and selects the faster backend."""

from dataclasses import replace

import numpy as np
import pytest
from runtime_models import bundle_of, decoder_feeds, session_on

from onnxfold.runtime.backends.choice import Choice, Cost
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.fold_runs import Placement

NBYTES = 1 << 20
SLOW = "a slow one"


def run(choice: Choice, kernel: Cost, onnxruntime: Cost, folds: int, nbytes: int = NBYTES) -> str:
    """Simulate folds with these costs, and return a letter for each fold.

    The letter is k for the kernel, or o for onnxruntime.
    """
    letters = []
    for _ in range(folds):
        is_kernel = choice.select(nbytes)
        choice.add(nbytes, is_kernel, kernel if is_kernel else onnxruntime)
        letters.append("k" if is_kernel else "o")
    return "".join(letters)


def test_a_wrong_preference_ends_with_the_first_trial():
    choice = Choice(prefers_kernel=False)
    assert run(choice, Cost(0.4, 0.4), Cost(1, 1), 20) == "o" * 12 + "k" * 8
    assert choice.prefers_kernel
    assert choice.ratios == pytest.approx(Cost(2.5, 2.5))


def test_trials_become_rare_while_they_confirm_the_preference():
    choice = Choice(prefers_kernel=True)
    folds = run(choice, Cost(1, 1), Cost(2, 2), 2000)
    starts = [k for k in range(1, 2000) if folds[k - 1 : k + 1] == "ko"]
    assert starts == [12, 111, 498]
    assert folds.count("o") == 3 * len(starts)


def test_a_trial_that_is_expected_to_take_long_is_delayed():
    choice = Choice(prefers_kernel=True, ratio=10.0)
    assert run(choice, Cost(1, 1), Cost(10, 10), 123) == "k" * 120 + "ooo"


def test_the_time_of_opening_a_session_delays_the_next_trial():
    choice = Choice(prefers_kernel=True)
    for _ in range(15):
        is_kernel = choice.select(NBYTES)
        choice.add(NBYTES, is_kernel, Cost(1, 1), opening=0 if is_kernel else 10)
    assert run(choice, Cost(1, 1), Cost(1, 1), 209) == "k" * 208 + "o"


@pytest.mark.parametrize(
    ("kernel", "is_preferred"),
    [
        (Cost(0.89, 9.0), True),  # the wall time decides
        (Cost(0.95, 1.0), False),  # the difference may be noise
        (Cost(1.0, 0.8), True),  # equal wall time, less CPU time
        (Cost(1.04, 0.8), True),
        (Cost(1.06, 0.5), False),
        (Cost(0.0, 0.0), True),
    ],
)
def test_cpu_time_decides_between_backends_of_equal_speed(kernel, is_preferred):
    choice = Choice(prefers_kernel=False)
    run(choice, kernel, Cost(1, 1), 15)
    assert choice.prefers_kernel == is_preferred


@pytest.mark.parametrize("kernel", [Cost(w, c) for w in (0.85, 0.94, 1.04) for c in (0.5, 1.0, 2)])
def test_the_preference_does_not_alternate(kernel):
    choice = Choice(prefers_kernel=False)
    run(choice, kernel, Cost(1, 1), 15)
    preferred = choice.prefers_kernel
    for _ in range(300):
        run(choice, kernel, Cost(1, 1), 1)
        assert choice.prefers_kernel == preferred


def test_opening_a_session_of_the_preferred_backend_delays_no_trial():
    choice = Choice(prefers_kernel=False)
    for _ in range(12):
        assert not choice.select(NBYTES)
        choice.add(NBYTES, False, Cost(1, 1), opening=100)
    assert choice.select(NBYTES)


def test_one_disturbed_fold_changes_nothing():
    choice = Choice(prefers_kernel=True)
    for k in range(15):
        is_kernel = choice.select(NBYTES)
        disturbed = 50 if k in (11, 12) else 1
        choice.add(NBYTES, is_kernel, Cost(disturbed, 1) if is_kernel else Cost(disturbed * 2, 2))
    assert choice.prefers_kernel


def test_each_size_has_its_own_preference():
    choice = Choice(prefers_kernel=True)
    run(choice, Cost(1, 1), Cost(0.1, 0.1), 15)
    assert not choice.prefers_kernel
    assert run(choice, Cost(1, 1), Cost(3, 3), 12, nbytes=100 * NBYTES) == "k" * 12
    assert choice.prefers_kernel
    assert run(choice, Cost(1, 1), Cost(0.1, 0.1), 1) == "o"


def test_times_are_relative_to_the_bytes():
    choice = Choice(prefers_kernel=True)
    for k in range(15):
        nbytes = NBYTES + (k % 2) * NBYTES // 2
        is_kernel = choice.select(nbytes)
        second = nbytes / NBYTES
        slower = Cost(1.2 * second, second)
        choice.add(nbytes, is_kernel, Cost(second, second) if is_kernel else slower)
    assert choice.prefers_kernel


def test_a_trial_that_fails_ends():
    choice = Choice(prefers_kernel=True)
    run(choice, Cost(1, 1), Cost(1, 1), 12)
    assert not choice.select(NBYTES)
    choice.cancel(NBYTES)
    assert run(choice, Cost(1, 1), Cost(1, 1), 49) == "k" * 48 + "o"


def test_a_session_replaces_a_kernel_that_is_slower(compiled, decoder, tmp_path, caplog):
    """The times in the manifest have no effect, because a fixture sets `is_slower` to False."""
    caplog.set_level("INFO", "onnxfold")
    session = session_on(bundle_of(decoder, tmp_path / "b", "states", "mask", backend=SLOW))
    assert {place.backend for place in session.placements()} == {SLOW}
    feeds = [decoder_feeds(seed) for seed in range(40)]
    for each in feeds[:16]:
        session.run(None, each)
    assert {place.backend for place in session.placements()} == {"onnxruntime"}
    for place in session.placements():
        assert f"of the CPU time of the kernel that {SLOW} compiled" in place.reason
    assert "onnxruntime computes" in caplog.text
    folds = session.fold_statistics().folds
    session.run(None, feeds[0])  # the tensors of the kernel are still in the cache
    assert session.fold_statistics().folds == folds


def test_only_auto_reads_cached_tensors_of_both_backends(compiled, decoder, tmp_path, monkeypatch):
    bundle = bundle_of(decoder, tmp_path / "b", "states", "mask", backend=SLOW)
    cache = FoldCache()
    feeds = decoder_feeds()
    for slower in (True, False):
        monkeypatch.setattr(Kernel, "is_slower", slower)
        auto = session_on(bundle, cache=cache)
        auto.run(None, feeds)
        assert auto.fold_statistics().folds == (2 if slower else 0)
    for backend in ("onnxruntime", SLOW):
        session = session_on(bundle, cache=cache, backend=backend)
        session.run(None, feeds)
        assert session.fold_statistics().folds == 2


def test_a_kernel_that_was_timed_as_slower_has_trials(compiled, decoder, tmp_path, monkeypatch):
    monkeypatch.setattr(Kernel, "is_slower", True)
    bundle = bundle_of(decoder, tmp_path / "b", "states", "mask", backend="counting")
    kernels = bundle.manifest.kernels
    bundle.manifest.kernels = [replace(k, seconds=None, onnxruntime_seconds=None) for k in kernels]
    session = session_on(bundle)
    assert {place.backend for place in session.placements()} == {"onnxruntime"}
    want = session_on(bundle, backend="onnxruntime")

    def had_trial(place: Placement) -> bool:
        return place.backend == "counting" or "in this session" in place.reason

    for seed in range(1000):
        result = session.run(None, decoder_feeds(seed))[0]
        np.testing.assert_array_equal(result, want.run(None, decoder_feeds(seed))[0])
        if all(map(had_trial, session.placements())):
            break
    assert all(map(had_trial, session.placements()))
