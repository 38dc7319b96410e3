"""Test that sessions opened before a fork work in the child and in the parent."""

import os
import threading

import numpy as np
import pytest
from processes import exit_code_in_fork

import onnxfold
from tests.servers import requests

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

ONES = np.ones((8, 8), np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def check(session, value: float) -> None:
    """Assert that a run of a session on `adapter_model(0)` has the results of onnxruntime."""
    feeds = {"c": value * ONES, "x": ONES}
    result = session.run(None, feeds)
    assert not requests.differs(result, requests.adapter_model(0), feeds)


@pytest.fixture(params=["memory", "bundle"])
def source(request, tmp_path):
    """Return the source and the keyword arguments of a session on `adapter_model(0)`."""
    constants = {"runtime_constants": ["c"]}
    if request.param == "memory":
        return requests.adapter_model(0), constants
    onnxfold.split(
        requests.adapter_model(0), tmp_path / "bundle", backend="onnxruntime", **constants
    )
    return tmp_path / "bundle", {}


@pytest.mark.parametrize("specialize", [False, True])
def test_a_session_and_its_handles_run_in_the_child(source, specialize):
    model, arguments = source
    session = onnxfold.Session(model, specialize=specialize, backend="onnxruntime", **arguments)
    handle = session.fold({"c": 2 * ONES})
    check(session, 1.0)
    expected = handle.run(None, {"x": ONES})[0]
    before = session.entry

    def work() -> None:
        assert session.entry is not before
        check(session, 1.0)
        check(session, 3.0)
        assert np.array_equal(handle.run(None, {"x": ONES})[0], expected)
        assert np.array_equal(session.run(None, {"x": ONES}, handle=handle)[0], expected)

    assert exit_code_in_fork(work) == 0
    assert session.entry is before
    check(session, 3.0)
    assert np.array_equal(handle.run(None, {"x": ONES})[0], expected)


def test_a_binding_belongs_to_the_process_that_made_it(source):
    model, arguments = source
    session = onnxfold.Session(model, backend="onnxruntime", **arguments)
    check(session, 1.0)
    binding = session.io_binding()
    binding.bind_cpu_input("x", ONES)
    binding.bind_output("y")

    def work() -> None:
        with pytest.raises(onnxfold.OnnxFoldError, match="fork"):
            session.run_with_iobinding(binding)
        own = session.io_binding()
        own.bind_cpu_input("x", ONES)
        own.bind_output("y")
        session.run_with_iobinding(own)

    assert exit_code_in_fork(work) == 0
    session.run_with_iobinding(binding)


def test_an_inference_session_runs_in_the_child(tmp_path):
    model = requests.constant_model(0)
    session = onnxfold.InferenceSession(model.SerializeToString())
    feeds = {"x": np.ones(4, np.float32)}
    before = session._sess

    def work() -> None:
        assert session._sess is not before
        assert not requests.differs(session.run(None, feeds), model, feeds)
        binding = session.io_binding()
        binding.bind_cpu_input("x", feeds["x"])
        binding.bind_output("y")
        session.run_with_iobinding(binding)

    assert exit_code_in_fork(work) == 0
    assert session._sess is before
    assert not requests.differs(session.run(None, feeds), model, feeds)


def test_a_child_folds_after_a_fork_during_a_fold():
    """A lock that a thread of the parent holds at the fork must be free in the child."""
    session = onnxfold.Session(
        requests.adapter_model(0), runtime_constants=["c"], backend="onnxruntime"
    )
    ended = threading.Event()

    def fold() -> None:
        value = 0.0
        while not ended.is_set():
            value += 1e-3
            session.run(None, {"c": value * ONES, "x": ONES})

    thread = threading.Thread(target=fold)
    thread.start()
    try:
        codes = [exit_code_in_fork(lambda: check(session, 2.0)) for _ in range(10)]
    finally:
        ended.set()
        thread.join()
    assert codes == [0] * 10
