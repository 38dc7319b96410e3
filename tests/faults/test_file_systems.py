"""Test full and read-only file systems, and several processes that write the same output."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import onnxfold
from onnxfold.support.errors import OnnxFoldError
from tests.model_table import saved
from tests.mounts import mounted

from .kills import content, finish, model, run
from .test_changing_sources import files

OPTIONS = [(), ("--external-data",), ("--external-data-name", "w.data"), ("--check", "1")]


@pytest.fixture
def small(tmp_path) -> Iterator[Path]:
    """Mount a file system of 6 MiB, which has room for the model of 4 MiB and 2 MiB more."""
    yield from mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=6m", "tmpfs")


@pytest.fixture
def read_only(tmp_path) -> Iterator[Path]:
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(model(0), source / "m.onnx")
    (source / "o.onnx").write_bytes(b"old")
    yield from mounted(tmp_path / "read_only", "--bind", "-o", "ro", str(source))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("output", ["o.onnx", "m.onnx"])
def test_full_disk_leaves_all_files_unchanged(small, options, output, run_here) -> None:
    onnx.save(model(0), small / "m.onnx")
    (small / "o.onnx").write_bytes(b"old")
    before = files(small)
    error = run_here(small, "m.onnx", "-o", output, *options)
    assert error.startswith("onnxfold: error: ")
    assert error.count("\n") == 1 and "No space left on device" in error
    assert output in error or ".data" in error
    assert files(small) == before


def test_leftovers_are_removed_from_a_full_disk(small, tmp_path) -> None:
    """Files of killed processes are removed before the output is written."""
    onnx.save(model(0), tmp_path / "m.onnx")
    (small / ".o.onnx.onnxfold-lock").touch()
    (small / ".o.onnx.onnxfold-01234567.tmp").write_bytes(bytes(2 << 20))
    (small / ".o.onnx.onnxfold-01234567.data").write_bytes(bytes(3 << 20))
    onnxfold.optimize_file(tmp_path / "m.onnx", small / "o.onnx")
    assert os.listdir(small) == ["o.onnx"]


def test_full_disk_for_spilled_results_is_reported(small) -> None:
    """Results that exceed the memory limit are spilled to a file in the folder of the output."""
    text = """
    g (float[1, 1536] x) => (float[1, 1536] y) <int64[2] shape = {1536, 1536}, int64 axis = {0}> {
        ones = ConstantOfShape<value = float[1] {1.5}>(shape)
        sums = CumSum(ones, axis)
        w = MatMul(sums, sums)
        y = MatMul(x, w)
    }"""
    saved(text, small / "m.onnx", 18)
    with pytest.raises(OnnxFoldError, match=r"No space left") as caught:
        onnxfold.optimize_file(
            small / "m.onnx", small / "o.onnx", fold_all=True, memory_limit=1 << 20
        )
    assert str(caught.value.file).startswith(str(small))
    assert os.listdir(small) == ["m.onnx"]


@pytest.mark.parametrize("options", OPTIONS)
def test_read_only_folder_is_reported(read_only, options, run_here) -> None:
    before = files(read_only)
    for output in ("o.onnx", "new.onnx", "m.onnx"):
        error = run_here(read_only, "m.onnx", "-o", output, *options)
        assert (
            error.count("\n") == 1
            and "Read-only file system" in error
            and (output in error or "w.data" in error)
        )
    assert files(read_only) == before


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Return a function that runs a failing command and returns its error message."""
    from onnxfold.cli import main

    def run_(folder: Path, *words: str) -> str:
        monkeypatch.chdir(folder)
        assert main(["optimize", "-q", *words]) == 2
        return capsys.readouterr().err

    return run_


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_several_processes_write_the_same_output(tmp_path, external) -> None:
    """The output is the complete result of one process, with or without a data file."""
    moments = random.Random(0)
    for seed in range(3):
        onnx.save(model(seed), tmp_path / f"m{seed}.model")
        onnxfold.optimize_file(tmp_path / f"m{seed}.model", tmp_path / f"e{seed}.model")
    expected = {content(tmp_path / f"e{seed}.model") for seed in range(3)}
    kinds = ["--external-data", "--external-data" if external else "--no-external-data"]
    for _ in range(6):
        children = [
            run(
                tmp_path,
                ["optimize", "-q", f"m{k % 3}.model", "-o", "o.onnx", moments.choice(kinds)],
            )
            for k in range(6)
        ]
        assert [finish(child) for child in children] == [0] * 6
        assert content(tmp_path / "o.onnx") in expected
        others = {name for name in os.listdir(tmp_path) if not name.endswith(".model")}
        assert others in ({"o.onnx"}, {"o.onnx", "o.onnx.data"})
        loaded = onnx.load(tmp_path / "o.onnx", load_external_data=False)
        has_data = any(tensor.external_data for tensor in loaded.graph.initializer)
        assert has_data == ("o.onnx.data" in others)


def test_several_processes_optimize_in_place(tmp_path) -> None:
    """A process fails if another process replaces the source in the meantime."""
    onnx.save(model(0), tmp_path / "m.onnx", save_as_external_data=True, location="m.onnx.data")
    onnxfold.optimize_file(tmp_path / "m.onnx", tmp_path / "e.model")
    expected = content(tmp_path / "e.model")
    command = ["optimize", "-q", "m.onnx", "-o", "m.onnx"]
    codes = [finish(child) for child in [run(tmp_path, command) for _ in range(5)]]
    assert 0 in codes and set(codes) <= {0, 2}
    assert content(tmp_path / "m.onnx") == expected
    assert sorted(os.listdir(tmp_path)) == ["e.model", "e.model.data", "m.onnx", "m.onnx.data"]
