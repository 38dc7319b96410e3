"""The caller's session options: all of them count, and none is changed."""

from __future__ import annotations

import onnxruntime as ort
import pytest
from runtime_models import parse, random

from onnxfold import storage
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session

KEY = "session.model_external_initializers_file_folder_path"
TEXT = """g (float[n, 64] x, float[64, 64] r) => (float[n, 64] y) {
    e = Exp(r)
    a = MatMul(x, w)
    y = MatMul(a, e)
}"""
FEEDS = {"x": random(3, 64, seed=1), "r": random(64, 64, seed=2)}


@pytest.fixture
def path(tmp_path):
    model = storage.from_proto(parse(TEXT, w=random(64, 64)))
    storage.save(model, tmp_path / "model.onnx", external_data=True, fsync=False)
    return tmp_path / "model.onnx"


def opened(path, options) -> Session:
    return Session(path, options, runtime_constants=["r"], backend="onnxruntime", cache=FoldCache())


def test_they_are_as_they_were_and_nothing_is_printed(path, capfd):
    options = ort.SessionOptions()
    opened(path, options)
    session = opened(path, options)
    with pytest.raises(RuntimeError, match="does not have"):
        options.get_session_config_entry(KEY)
    whole = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    got, want = session.run(None, FEEDS), whole.run(None, FEEDS)
    assert got[0].shape == want[0].shape
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_read_back_counts_too(path):
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    options.logid = "mine"
    session = opened(path, options)
    assert session.get_inputs()[0].shape == [3, 64]
    used = session.get_session_options()
    assert used.get_session_config_entry("session.disable_prepacking") == "1"
    assert (used.intra_op_num_threads, used.logid) == (1, "mine")


def test_a_profile_is_that_of_entry(path, tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = opened(path, options)
    assert options.enable_profiling
    session.run(None, FEEDS)
    session.end_profiling()
    (profile,) = tmp_path.glob("profile*")
    assert "MatMul" in profile.read_text()


def test_a_model_that_onnxruntime_writes_is_complete(tmp_path):
    """It would refer to weights where nobody finds them."""
    path = tmp_path / "model.onnx"
    storage.save(storage.from_proto(parse(TEXT, w=random(64, 64))), path, fsync=False)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    session = opened(path, options)
    assert options.optimized_model_filepath == str(tmp_path / "optimized.onnx")
    assert "w" in storage.load(tmp_path / "optimized.onnx").graph.initializers
    assert session.run(None, FEEDS)[0].shape == (3, 64)
