"""A process killed at any moment leaves the old model or the new one, never anything else."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faults.kills import finish, forked
from storage_models import linear

from onnxfold import storage


def die_at(path: Path, other: Path, step: int, after: bool, external: bool) -> int:
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
    return 0  # there were fewer steps


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
        child = forked(lambda at=(step, after): die_at(path, other, *at, external))
        assert finish(child) in (-signal.SIGKILL, 0)
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
