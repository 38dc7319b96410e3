"""A command that is asked to end: the exit code says so, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that takes some time to be written: 256 MB of transposed weights."""
    size = 2048
    weight = np.arange(size * size, dtype=np.float32).reshape(size, size)
    initializers = [numpy_helper.from_array(weight + i, f"w{i}") for i in range(16)]
    nodes = [helper.make_node("Transpose", [f"w{i}"], [f"y{i}"], perm=[1, 0]) for i in range(16)]
    outputs = [
        helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [size, size]) for i in range(16)
    ]
    graph = helper.make_graph(nodes, "g", [], outputs, initializers)
    path = tmp_path_factory.mktemp("slow") / "m.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    yield path
    path.unlink()


def start(*args: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "onnxfold", "optimize", *map(str, args)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def writing(folder) -> bool:
    return any(name.endswith((".tmp", ".data")) for name in os.listdir(folder))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("more", [[], ["--external-data"]])
def test_signals(slow, tmp_path, number, more) -> None:
    process = start(slow, "-o", tmp_path / "o.onnx", *more)
    while not writing(tmp_path):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)  # those that follow do not disturb
    error = process.communicate()[1]
    first = number if process.returncode == 128 + number else signal.SIGTERM  # they may swap
    told = "interrupted" if first == signal.SIGINT else f"ended by {first.name}"
    assert (process.returncode, error) == (128 + first, f"onnxfold: error: {told}\n")
    assert os.listdir(tmp_path) == []


def test_what_is_ignored_stays_ignored(slow, tmp_path) -> None:
    """As under nohup."""
    process = start(
        slow,
        *("-o", tmp_path / "o.onnx", "-q"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    while not writing(tmp_path):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    assert os.listdir(tmp_path) == ["o.onnx"]


def test_handlers_of_the_caller_are_not_touched(run, tiny, tmp_path) -> None:
    seen = []
    before = [signal.getsignal(number) for number in SIGNALS]
    signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        assert run("inspect", tiny).code == 0
        signal.raise_signal(signal.SIGTERM)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, before[1])
    assert [signal.getsignal(number) for number in SIGNALS] == before
