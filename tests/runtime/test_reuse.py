"""Test which inputs are held constant and which values are folded."""

import numpy as np
import pytest

from onnxfold.runtime.sessions.constant_values import content_key
from onnxfold.runtime.sessions.reuse import MOST_NEW, InputWatch, ValueHistory

STATES = frozenset(["states"])
BOTH = frozenset(["states", "ids"])


def states(seed: int) -> np.ndarray:
    return np.full((3, 4), seed, np.float32)


def feed(state: int, ids: int) -> dict[str, np.ndarray]:
    return {"states": states(state), "ids": np.array([ids])}


def test_an_input_is_held_after_two_equal_runs():
    watch = InputWatch([STATES], frozenset(["states", "ids"]))
    assert watch.observe(feed(1, 1)) == frozenset()
    assert watch.observe(feed(1, 2)) == STATES


def test_an_input_with_alternating_values_is_held():
    watch = InputWatch([STATES], frozenset(["states", "ids"]))
    found = [watch.observe(feed(k % 3, k)) for k in range(5)]
    assert found == [frozenset()] * 3 + [STATES] * 2


def test_all_inputs_of_a_set_must_repeat():
    watch = InputWatch([BOTH], frozenset(["states", "ids", "x"]))
    watch.observe(feed(1, 1))
    assert watch.observe(feed(1, 2)) == frozenset()
    assert watch.changes == 2
    assert watch.observe(feed(1, 2)) == BOTH
    assert watch.changes == 0


def test_one_required_input_is_not_held():
    sets = [STATES, frozenset(["ids"])]
    watch = InputWatch(sets, frozenset(["states", "ids"]))
    watch.observe(feed(1, 1))
    assert watch.observe(feed(1, 1)) == STATES
    watch = InputWatch(sets, frozenset(["states", "ids", "x"]))
    watch.observe(feed(1, 1))
    assert watch.observe(feed(1, 1)) == BOTH


def test_an_omitted_input_repeats_its_default_value():
    watch = InputWatch([STATES], frozenset(["ids"]))
    watch.observe({"ids": np.array([1])})
    assert watch.observe({"ids": np.array([2])}) == STATES


def test_a_new_value_is_folded_if_the_last_one_was_repeated():
    history = ValueHistory(8)
    folded = [history.add(key) for key in "aabbcdeeffg"]
    expected = {"a": (True, True), "b": (True, True), "c": (True,), "d": (False,)}
    expected |= {"e": (False, True), "f": (True, True), "g": (True,)}
    assert folded == [each for values in expected.values() for each in values]


def test_returning_values_are_folded():
    history = ValueHistory(8)
    history.add("x")
    assert [history.add(key) for key in "abcabc"] == [False] * 3 + [True] * 3
    assert history.new_values == 0


def test_a_cycle_of_more_values_than_fit_is_not_folded():
    history = ValueHistory(4)
    history.add("x")
    assert not any(history.add(key) for key in "abcdefabcdef")


def test_new_values_are_counted():
    history = ValueHistory(8)
    for k in range(MOST_NEW):
        history.add(k)
    assert history.new_values == MOST_NEW


@pytest.mark.parametrize("size", [3, 3000, 300_000])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, np.float16])
def test_keys_depend_on_content_and_shape(size, dtype):
    rng = np.random.default_rng(0)
    array = (rng.random(size) * 100).astype(dtype)
    key = content_key(array)
    assert key == content_key(array.copy())
    assert key == content_key(np.repeat(array, 2)[::2])
    assert key != content_key(array[:-1])
    assert key != content_key(array.reshape(1, -1))
    changed = array.copy()
    changed[-1] = changed[-1] + 1 if dtype is not bool else not changed[-1]
    assert key != content_key(changed)


def test_keys_distinguish_zeros_and_types():
    zero = np.zeros(2, np.float32)
    assert content_key(zero) != content_key(-zero)
    assert content_key(zero) != content_key(zero.view(np.int32))
    assert content_key(np.array(["a", "bc"])) == content_key(np.array(["a", "bc"], object))
    assert content_key(np.array(["a", "bc"])) != content_key(np.array(["ab", "c"]))
    assert content_key([1.0]) is None
