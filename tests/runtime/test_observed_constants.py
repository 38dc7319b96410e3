"""Test `InferenceSession` with ``runtime_constants``."""

import logging
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import ROOT
from reference_session import reference_options

import onnxfold
from onnxfold.runtime.sessions.reuse import MOST_NEW

DECODER = ROOT / "models" / "t5-decoder.onnx"
SWIN = ROOT / "models" / "swin.onnx"
CPU = ["CPUExecutionProvider"]
WIDTH = 64


def states(seed: int = 0, positions: int = 256) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "encoder_hidden_states": rng.standard_normal((1, positions, WIDTH), np.float32),
        "encoder_attention_mask": np.ones((1, positions), np.int64),
    }


def ids(*tokens: int) -> dict[str, np.ndarray]:
    return {"input_ids": np.array([tokens], np.int64)}


def automatic(**arguments) -> onnxfold.InferenceSession:
    arguments = {"runtime_constants": "auto", **arguments}
    return onnxfold.InferenceSession(DECODER, reference_options(), CPU, **arguments)


@pytest.fixture
def original() -> ort.InferenceSession:
    return ort.InferenceSession(DECODER, reference_options(), providers=CPU)


def assert_same(session, original, feed, names=None) -> None:
    expected = original.run(names, feed)
    for made, want in zip(session.run(names, feed), expected, strict=True):
        assert made.tobytes() == want.tobytes()


def in_use(original, **arguments) -> onnxfold.InferenceSession:
    """Return a session that holds the states constant after two runs with the same states."""
    session = automatic(**arguments)
    for token in (1, 2):
        assert_same(session, original, {**states(), **ids(token)})
    assert session.wait_for_runtime_constants().state == "in use"
    return session


def test_states_that_repeat_are_folded_once(original, caplog):
    caplog.set_level(logging.INFO, "onnxfold")
    session = automatic()
    assert session.runtime_constants.state == "watching"
    assert session.runtime_constants.names == ("encoder_hidden_states", "input_ids")
    assert_same(session, original, {**states(), **ids(1)})
    assert session.runtime_constants.state == "watching"
    assert_same(session, original, {**states(), **ids(2)})
    found = session.wait_for_runtime_constants()
    assert (found.state, found.names) == ("in use", ("encoder_hidden_states",))
    assert found.share > 0.3
    assert (found.folds, found.runs) == (0, 0)
    for token in range(10):
        assert_same(session, original, {**states(), **ids(3 + token)})
    found = session.runtime_constants
    assert (found.folds, found.runs, found.original_runs) == (1, 10, 2)
    assert found.cached_bytes > 0
    assert {place.backend for place in found.placements} == {"onnxruntime"}
    assert "encoder_hidden_states (in use)" in str(found)
    assert "ms instead of" in str(found)
    told = [
        record.message for record in caplog.records if "encoder_hidden_states" in record.message
    ]
    assert len(told) == 1
    assert "work" in told[0]


def test_a_later_start_holds_the_same_inputs_at_once(original):
    in_use(original)
    session = automatic()
    assert session.wait_for_runtime_constants().state == "in use"
    assert_same(session, original, {**states(1), **ids(1)})
    assert session.runtime_constants.folds == 1
    assert session.runtime_constants.original_runs == 0


def test_new_values_are_folded_at_once_if_the_last_ones_were_repeated(original):
    session = in_use(original)
    for seed in range(3):
        for token in range(4):
            assert_same(session, original, {**states(seed, 100 + seed), **ids(token)})
    found = session.runtime_constants
    assert (found.folds, found.runs, found.original_runs) == (3, 12, 2)


def test_inputs_that_change_in_every_run_are_not_held(original):
    session = in_use(original)
    for seed in range(MOST_NEW + 2):
        assert_same(session, original, {**states(seed + 1, 9), **ids(10 + seed)})
    found = session.runtime_constants
    assert found.state == "paused"
    assert "changed" in found.reason
    assert found.cached_bytes == 0
    assert found.runs <= 1  # the first new value is folded


def test_inputs_that_change_from_the_first_run_on_are_not_watched(original):
    session = automatic()
    for seed in range(MOST_NEW):
        assert_same(session, original, {**states(seed, 9), **ids(seed)})
    assert session.runtime_constants.state == "paused"
    for _ in range(3):
        assert_same(session, original, {**states(0, 9), **ids(1)})
    assert session.runtime_constants.state == "paused"


def test_alternating_values_are_folded_once(original):
    session = in_use(original)
    tenants = [states(seed) for seed in range(3)]
    for run in range(12):
        assert_same(session, original, {**tenants[run % 3], **ids(run)})
    found = session.runtime_constants
    assert found.folds == 3
    assert found.runs >= 9


def test_folded_tensors_keep_the_limit_of_the_cache(original):
    session = in_use(original)
    assert_same(session, original, {**states(0), **ids(1)})
    one = session.runtime_constants.cached_bytes
    session = in_use(original, max_cache_bytes=2 * one)
    for run in range(12):
        assert_same(session, original, {**states(run % 4), **ids(run)})
    assert one <= session.runtime_constants.cached_bytes <= 2 * one


def test_a_change_in_place_is_detected(original):
    session = in_use(original)
    given = states()
    for _ in range(5):
        given["encoder_hidden_states"][0, 200, 3] += 1.0
        for token in range(2):
            assert_same(session, original, {**given, **ids(token)})
    assert session.runtime_constants.runs >= 8


def test_a_warm_up_with_equal_feeds_does_not_fix_the_inputs(original):
    """The first runs repeat all inputs. Later runs repeat the states only."""
    session = automatic()
    for _ in range(4):
        assert_same(session, original, {**states(), **ids(1)})
        session.wait_for_runtime_constants()
    assert session.runtime_constants.names == ("encoder_hidden_states", "input_ids")
    for token in range(6):
        assert_same(session, original, {**states(), **ids(1, token)})
        session.wait_for_runtime_constants()
    assert session.runtime_constants.names == ("encoder_hidden_states",)
    assert session.runtime_constants.runs >= 3


def test_named_inputs_are_held_from_the_first_run_on(original):
    session = automatic(runtime_constants=["encoder_*"])
    found = session.runtime_constants
    assert found.state == "in use"
    assert found.names == ("encoder_attention_mask", "encoder_hidden_states")
    for seed in range(MOST_NEW + 2):
        assert_same(session, original, {**states(seed, 9), **ids(1)})
    found = session.runtime_constants
    assert (found.runs, found.original_runs) == (MOST_NEW + 2, 0)


def test_names_are_checked():
    with pytest.raises(onnxfold.UsageError, match="'encodr_hidden_states'; did you mean"):
        automatic(runtime_constants=["encodr_hidden_states"])
    with pytest.raises(onnxfold.UsageError, match="runtime_constants must be auto or"):
        automatic(runtime_constants="encoder_*")


def test_a_model_without_worthwhile_inputs_is_not_watched(caplog):
    caplog.set_level(logging.INFO, "onnxfold")
    session = onnxfold.InferenceSession(SWIN, providers=CPU, runtime_constants="auto")
    assert session._constants is None
    found = session.runtime_constants
    assert (found.state, found.reason) == ("off", "no input is worth holding constant")
    assert "no input is worth holding constant" in caplog.text


def test_without_the_keyword_a_debug_line_names_the_inputs(caplog):
    caplog.set_level(logging.DEBUG, "onnxfold")
    session = onnxfold.InferenceSession(DECODER, providers=CPU)
    assert session.runtime_constants.state == "off"
    told = [r for r in caplog.records if 'runtime_constants="auto"' in r.message]
    assert {r.levelno for r in told} == {logging.DEBUG}
    assert any("encoder_hidden_states" in r.message for r in told)


def test_each_method_to_run_uses_folded_tensors(original):
    session = in_use(original)
    feed = {**states(), **ids(1, 2)}
    (expected,) = original.run(None, feed)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
    assert session.run(["logits"], values)[0].tobytes() == expected.tobytes()
    (made,) = session.run_with_ort_values(["logits"], values)
    assert made.numpy().tobytes() == expected.tobytes()
    assert session.runtime_constants.runs == 2
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("logits")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tobytes() == expected.tobytes()


def test_asynchronous_runs_have_the_results_of_the_original(original):
    options = reference_options()
    options.intra_op_num_threads = 2
    session = onnxfold.InferenceSession(DECODER, options, CPU, runtime_constants="auto")
    for token in (1, 2):
        session.run(None, {**states(), **ids(token)})
    session.wait_for_runtime_constants()
    feed = {**states(), **ids(1, 2)}
    (expected,) = original.run(None, feed)
    ended = threading.Event()
    made = []

    def take(results, data, error):
        made.extend(results)
        ended.set()

    session.run_async(["logits"], feed, take, None)
    assert ended.wait(60)
    assert made[0].tobytes() == expected.tobytes()


WRONG = {
    "missing": lambda feed: {"input_ids": feed["input_ids"]},
    "type": lambda feed: {**feed, "encoder_hidden_states": feed["encoder_hidden_states"] > 0},
    "shape": lambda feed: {**feed, "encoder_hidden_states": feed["encoder_hidden_states"][0]},
    "other": lambda feed: {**feed, "x": feed["input_ids"]},
}


@pytest.mark.parametrize("how", list(WRONG))
def test_errors_are_those_of_onnxruntime(original, how):
    session = in_use(original)
    feed = {**states(), **ids(1)}
    for _ in range(5):
        with pytest.raises(Exception) as theirs:
            original.run(None, WRONG[how](feed))
        with pytest.raises(type(theirs.value)) as ours:
            session.run(None, WRONG[how](feed))
        assert str(ours.value) == str(theirs.value)
    assert_same(session, original, feed)
    assert session.runtime_constants.state == "in use"


def test_feeds_may_be_lists(original):
    session = in_use(original)
    feed = {name: array.tolist() for name, array in {**states(1, 5), **ids(1)}.items()}
    assert_same(session, original, feed)


def test_auto_is_off_without_a_cache_folder(original, monkeypatch):
    monkeypatch.setenv("ONNXFOLD_SESSION_CACHE_BYTES", "0")
    session = automatic()
    found = session.runtime_constants
    assert (found.state, found.reason) == ("off", "the model is opened without optimization")
    assert_same(session, original, {**states(), **ids(1)})
    session = automatic(runtime_constants=["encoder_hidden_states"])
    assert session.runtime_constants.state == "in use"
    assert_same(session, original, {**states(), **ids(1)})
    assert session.runtime_constants.runs == 1


def test_a_model_that_was_replaced_is_not_split(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(DECODER.read_bytes())
    session = onnxfold.InferenceSession(path, providers=CPU, runtime_constants="auto")
    model = onnx.load(path)
    model.producer_name = "another"
    path.unlink()
    onnx.save(model, path)
    for token in range(3):
        session.run(None, {**states(), **ids(token)})
    found = session.wait_for_runtime_constants()
    assert found.state == "off"
    assert "changed while it was split" in found.reason


def test_inputs_are_held_after_the_providers_are_set(original):
    session = in_use(original)
    session.set_providers(CPU)
    assert session.wait_for_runtime_constants().state == "in use"
    assert_same(session, original, {**states(), **ids(1)})
    assert session.runtime_constants.folds == 1


def test_a_session_that_is_deleted_ends_its_preparation(original):
    session = automatic()
    for token in (1, 2):
        session.run(None, {**states(), **ids(token)})
    del session
    names = [thread.name for thread in threading.enumerate()]
    assert "onnxfold" not in names


def test_a_session_with_default_options_holds_inputs(original):
    """With other session options than the original, entry may compute other last bits."""
    session = onnxfold.InferenceSession(DECODER, providers=CPU, runtime_constants="auto")
    for token in range(6):
        feed = {**states(), **ids(1, token)}
        (want,) = original.run(None, feed)
        np.testing.assert_allclose(session.run(None, feed)[0], want, rtol=1e-4, atol=1e-4)
        session.wait_for_runtime_constants()
    assert session.runtime_constants.runs == 4


def test_a_session_on_a_serialized_model_holds_inputs(original):
    session = onnxfold.InferenceSession(
        Path(DECODER).read_bytes(), reference_options(), CPU, runtime_constants="auto"
    )
    for token in range(3):
        assert_same(session, original, {**states(), **ids(token)})
        session.wait_for_runtime_constants()
    assert session.runtime_constants.runs == 1
