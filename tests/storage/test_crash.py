"""A process killed at any moment leaves the old model or the new one, never anything else."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from storage_models import linear

from onnxfold import storage


class Streamed(ir.LazyTensor):
    """12 MiB of one value."""

    def __init__(self, value: int) -> None:
        super().__init__(None, ir.DataType.INT32, ir.Shape([3 << 20]))
        self.value = value

    def tiles(self, nbytes: int):
        for offset in range(0, self.nbytes, nbytes):
            yield storage.Tile(offset, min(nbytes, self.nbytes - offset), self._read)

    def _read(self, out: np.ndarray) -> None:
        out.view(np.int32)[:] = self.value

    def release(self) -> None:
        pass


def rewrite_for_ever(path: Path, external: bool, fsync: bool, pipe: int) -> None:
    """Rewrite a model in place; tensor w is copied, tensor s streamed.

    All values of s are the number of the round, which is in the metadata of the model too.
    """
    number = int(storage.load(path).metadata_props.get("round", 0))
    os.write(pipe, b"ready\n")
    while True:
        number += 1
        model = storage.load(path)
        model.metadata_props["round"] = str(number)
        if "s" in model.graph.initializers:
            del model.graph.initializers["s"]
        model.graph.initializers.add(ir.Value(name="s", const_value=Streamed(number)))
        storage.save(model, path, external_data=external, fsync=fsync)
        os.write(pipe, b"%d\n" % number)


def fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work`` in a new process, with a pipe to write to; return its id and the other end."""
    reader, writer = os.pipe()
    gc.collect()  # a session that is ended in the fork waits for threads that are not there
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            work(writer)
            os._exit(0)
        os._exit(1)
    os.close(writer)
    return child, reader


def kill_while_saving(path: Path, external: bool, fsync: bool, delay: float) -> int:
    """Let a process rewrite the model, kill it, and return the last round it said it finished."""
    child, reader = fork(lambda pipe: rewrite_for_ever(path, external, fsync, pipe))
    with os.fdopen(reader) as file:
        assert file.readline() == "ready\n"
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rounds = [int(line) for line in file.read().splitlines()]
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


def die_at(path: Path, other: Path, step: int, after: bool, external: bool) -> None:
    """Save a new model over ``path``; die at the step-th change of a name, before it or after."""
    model = storage.load(path)
    model.doc_string = "new"
    weight = storage.load(other).graph.initializers["w"].const_value
    model.graph.initializers["w"].const_value = weight
    calls = 0

    def dying(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object, **kwargs: object) -> None:
            nonlocal calls
            calls += 1
            if calls == step and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            real(*args, **kwargs)
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in ("replace", "link", "unlink"):
        setattr(os, name, dying(getattr(os, name)))
    storage.save(model, path, external_data=external, fsync=False)
    os.kill(os.getpid(), signal.SIGKILL)  # there were fewer steps


@pytest.mark.parametrize("external", [True, False])
def test_kill_at_every_rename(tmp_path: Path, external: bool) -> None:
    """What had data of its own gets new ones, or becomes one file."""
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
    for step, after in itertools.product(range(1, 7), (False, True)):
        storage.save(storage.from_proto(linear()), path, external_data=True, fsync=False)
        child, reader = fork(
            lambda pipe, step=step, after=after: die_at(path, other, step, after, external)
        )
        os.close(reader)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == -signal.SIGKILL
        model = storage.load(path)
        is_new = model.doc_string == "new"
        outcomes.append(is_new)
        found = model.graph.initializers["w"].const_value.numpy()
        np.testing.assert_array_equal(found, new if is_new else old)
        storage.save(model, path, external_data=False, fsync=False)
        assert os.listdir(folder) == ["m.onnx"], step
        np.testing.assert_array_equal(
            storage.load(path).graph.initializers["w"].const_value.numpy(), new if is_new else old
        )
    assert outcomes == sorted(outcomes) and set(outcomes) == {False, True}
