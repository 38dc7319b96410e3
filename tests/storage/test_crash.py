"""A process killed at any moment leaves the old model or the new one, never anything else."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from storage_models import linear

from onnxfold import storage

# Rewrites a model in place for ever; tensor w is copied, tensor s streamed. All values of s are
# the number of the round, which is in the metadata of the model too.
CHILD = """
import sys, numpy as np, onnx_ir as ir
from onnxfold import storage

class Tile:
    def __init__(self, value, offset, nbytes):
        self.value, self.offset, self.nbytes = value, offset, nbytes
    def read(self, out):
        out.view(np.int32)[:] = self.value

class Streamed(ir.LazyTensor):
    def __init__(self, value):
        super().__init__(None, ir.DataType.INT32, ir.Shape([3 << 20]))
        self.value = value
    def tiles(self, nbytes):
        for offset in range(0, self.nbytes, nbytes):
            yield Tile(self.value, offset, min(nbytes, self.nbytes - offset))
    def release(self):
        pass

path, external, fsync = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"
model = storage.load(path)
round = int(model.metadata_props.get("round", 0))
print("ready", flush=True)
while True:
    round += 1
    model = storage.load(path)
    model.metadata_props["round"] = str(round)
    if "s" in model.graph.initializers:
        del model.graph.initializers["s"]
    model.graph.initializers.add(ir.Value(name="s", const_value=Streamed(round)))
    storage.save(model, path, external_data=external, fsync=fsync)
    print(round, flush=True)
"""


def kill_while_saving(path: Path, external: bool, fsync: bool, delay: float) -> int:
    """Let a process rewrite the model, kill it, and return the rounds it said it had finished."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(external), str(fsync)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    output, _ = child.communicate()
    rounds = [int(line) for line in output.splitlines() if line.strip().isdigit()]
    return rounds[-1] if rounds else 0


def check(path: Path, weight: np.ndarray, finished: int) -> int:
    model = storage.load(path)
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), weight)
    round = int(model.metadata_props.get("round", 0))
    assert round in (finished, finished + 1)
    if round:
        values = model.graph.initializers["s"].const_value.numpy()
        assert (values == round).all(), "the model has the data of another round"
    return round


def killed_at_random(tmp_path: Path, external: bool, times: int) -> None:
    path = tmp_path / "m.onnx"
    proto = linear(600)
    storage.save(storage.from_proto(proto), path, external_data=external)
    weight = storage.load(path).graph.initializers["w"].const_value.numpy().copy()
    seed = random.Random(times)
    finished = 0
    for i in range(times):
        delay = seed.uniform(0.0, 0.12)
        said = kill_while_saving(path, external, fsync=i % 3 == 0, delay=delay)
        finished = check(path, weight, said or finished)
    storage.save(storage.load(path), path)
    assert check(path, weight, finished) == finished
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"][: 1 + external]


@pytest.mark.parametrize("external", [False, True])
def test_kill(tmp_path: Path, external: bool) -> None:
    killed_at_random(tmp_path, external, 8)


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_kill_often(tmp_path: Path, external: bool) -> None:
    killed_at_random(tmp_path, external, 50)


# Dies at the n-th system call that changes names, before it or after it.
DIES_AT = """
import os, signal, sys
from onnxfold import storage
path, step, after = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
model = storage.load(path)
model.doc_string = "new"
other = storage.load(sys.argv[4])
model.graph.initializers["w"].const_value = other.graph.initializers["w"].const_value
calls = 0
def dying(real):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == step and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*args, **kwargs)
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
    return call
for name in ("replace", "link", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
storage.save(model, path, fsync=False)
print(calls)
"""


def test_kill_at_every_rename(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / "m.onnx"
    other = tmp_path / "other.onnx"
    storage.save(storage.from_proto(linear(seed=2)), other)
    old, new = (
        storage.from_proto(linear(seed=seed)).graph.initializers["w"].const_value.numpy()
        for seed in (0, 2)
    )
    outcomes = []
    for step in range(1, 7):
        storage.save(storage.from_proto(linear()), path, external_data=True, fsync=False)
        result = subprocess.run(
            [sys.executable, "-c", DIES_AT, path, str(step), str(step % 2 == 0), other],
            capture_output=True,
            text=True,
        )
        assert result.returncode in (0, -signal.SIGKILL), result.stderr
        model = storage.load(path)
        is_new = model.doc_string == "new"
        outcomes.append(is_new)
        found = model.graph.initializers["w"].const_value.numpy()
        np.testing.assert_array_equal(found, new if is_new else old)
        storage.save(model, path, external_data=False, fsync=False)
        with contextlib.suppress(FileNotFoundError):
            assert sorted(os.listdir(folder)) == ["m.onnx"], step
        np.testing.assert_array_equal(
            storage.load(path).graph.initializers["w"].const_value.numpy(), new if is_new else old
        )
    assert outcomes == sorted(outcomes) and set(outcomes) == {False, True}
