"""Test that a failed, interrupted or killed save leaves the complete old or new model."""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from faults.kills import finish, forked
from folders import names_in
from storage_models import linear, run, streamed, write

from onnxfold.ir import storage
from onnxfold.support.errors import ExternalDataError, ModelError, OnnxFoldError, UsageError


@pytest.mark.parametrize("external_data", [False, True])
def test_failure_leaves_the_old_model(tmp_path, external_data: bool) -> None:
    path = write(tmp_path / "m.onnx", linear())
    storage.save(storage.load(path), path, external_data=external_data)
    before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    model = streamed(rows=4096, fail_at=5 << 20)
    s = model.graph.initializers["s"].const_value
    with pytest.raises(RuntimeError, match="no value"):
        storage.save(model, path, external_data=external_data, threads=3)
    assert s.released == 1 and model.graph.initializers["s"].const_value is s

    class Stop(KeyboardInterrupt):
        pass

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise Stop

    with pytest.raises(Stop):
        storage.save(streamed(), path, external_data=external_data, progress=interrupt)
    assert {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)} == before


def test_failed_rename_keeps_a_data_file_that_no_model_refers_to(tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "m.onnx", linear())
    data_path = tmp_path / "m.onnx.data"
    data_path.write_bytes(b"not of this model")

    def replace_file(*args):
        raise OnnxFoldError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["onnxfold.ir.storage.save"], "replace_file", replace_file)
        with pytest.raises(OnnxFoldError, match="no space left"):
            storage.save(storage.load(path), path, external_data=True)
    assert data_path.read_bytes() == b"not of this model"
    storage.save(storage.load(path), path, external_data=True)
    assert data_path.read_bytes() != b"not of this model"


def test_interrupt_at_every_step_of_a_commit(tmp_path, tmp_path_factory, monkeypatch) -> None:
    """An error at any system call leaves the old or the new model with its data.

    The next save removes the leftovers.
    """
    other = tmp_path_factory.mktemp("other")
    path = write(tmp_path / "m.onnx", linear())
    storage.save(storage.load(path), path, external_data=True)
    seen = set()
    for error in (KeyboardInterrupt(), OSError(28, "No space left on device")):
        for after in (False, True):
            for step in range(40):
                calls = 0
                patched = []
                for name in ("replace", "link", "fsync", "unlink"):
                    real = getattr(os, name)

                    def call(*args, real=real, at=step + 1, after=after, error=error, **kwargs):
                        nonlocal calls
                        calls += 1
                        if calls == at:
                            if after:
                                real(*args, **kwargs)
                            raise error
                        return real(*args, **kwargs)

                    patched.append((name, call))
                seed = step + 1
                model = storage.from_proto(linear(seed=seed))
                model.meta["onnxfold.external_data"] = True
                old = run(path)
                with monkeypatch.context() as patch:
                    for name, call in patched:
                        patch.setattr(os, name, call)
                    with contextlib.suppress(KeyboardInterrupt, OnnxFoldError):
                        storage.save(model, path)
                now = run(path)
                new = run(write(other / "expected.onnx", linear(seed=seed)))
                assert np.array_equal(now, old) or np.array_equal(now, new)
                seen.add(np.array_equal(now, new))
                storage.save(model, path)
                np.testing.assert_array_equal(run(path), new)
                assert names_in(tmp_path) == ["m.onnx", "m.onnx.data"]
                if calls <= step:
                    break
            else:
                raise AssertionError("more steps than expected")
    assert seen == {False, True}


def test_missing_external_data(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear(), save_as_external_data=True, location="w.bin")
    model = ir.load(path)
    (tmp_path / "w.bin").rename(tmp_path / "gone.bin")
    with pytest.raises(ExternalDataError, match=r"w\.bin.*No such file"):
        storage.save(model, tmp_path / "o.onnx")
    with pytest.raises(ModelError):
        storage.load(path)
    assert names_in(tmp_path) == ["gone.bin", "m.onnx"]


def test_errors_contain_the_path(tmp_path) -> None:
    model = storage.from_proto(linear())
    for path in (tmp_path, tmp_path / "none" / "m.onnx"):
        with pytest.raises(UsageError) as caught:
            storage.save(model, path)
        assert caught.value.file == str(path)
    for name in ("a/b", "..", "", "m.onnx", "/x"):
        with pytest.raises(UsageError):
            storage.save(model, tmp_path / "m.onnx", external_data=name)
    assert names_in(tmp_path) == []
    model.graph.inputs[0].name = None
    with pytest.raises(ModelError):
        storage.save(model, tmp_path / "m.onnx")
    assert names_in(tmp_path) == []


def test_no_permission() -> None:
    """Not even root can create files in /sys/kernel."""
    if not os.path.isdir("/sys/kernel"):
        pytest.skip("no such file system")
    with pytest.raises(OnnxFoldError, match=r"/sys/kernel/m\.onnx: cannot be written"):
        storage.save(storage.from_proto(linear()), "/sys/kernel/m.onnx")


def test_full_disk(tmp_path) -> None:
    """A limit of the file size simulates a full disk. The code handles both errors equally."""
    resource = pytest.importorskip("resource")
    path = write(tmp_path / "m.onnx", linear())
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        for external_data in (False, True):
            with pytest.raises(OnnxFoldError, match=r"m\.onnx.*too large"):
                storage.save(streamed(), path, external_data=external_data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names_in(tmp_path) == ["m.onnx"] and path.read_bytes() == before


def test_leftovers_are_removed_but_not_those_of_other_targets(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    killed = ("lock", "0123abcd.tmp", "0123abcd.data")
    for name in [*(f".m.onnx.onnxfold-{end}" for end in killed), "m.onnx.data", "m.onnx.1.data"]:
        (tmp_path / name).write_bytes(b"dead")
    others = [f".mm.onnx.onnxfold-{end}" for end in killed] + ["mm.onnx.data", "m.onnx.x.data"]
    for name in others:
        (tmp_path / name).write_bytes(b"of another target")
    storage.save(storage.load(path), path)
    assert names_in(tmp_path) == sorted([*others, "m.onnx"])


def die_at(path: Path, other: Path, step: int, after: bool, external: bool) -> int:
    """Save the model at ``path`` with the weight of ``other``, and kill the process meanwhile.

    The process is killed before or after the step-th change of a file name. If there are fewer
    changes, the result is 0.
    """
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
    return 0  # the save changed fewer names


@pytest.mark.parametrize("external", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_kill_at_every_rename(tmp_path: Path, external: bool) -> None:
    """A model with external data is replaced by a model with new data, or by a single file."""
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
