"""Test sources that another program changes, replaces or removes while they are read."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxfold
from onnxfold.ir import storage
from onnxfold.support.errors import ModelError
from tests.model_table import parse

SIZE = 1024


def model() -> onnx.ModelProto:
    """Return a model with a weight that is copied, one that is transposed, and one for an Exp."""
    square = f"float[{SIZE},{SIZE}]"
    rows = f"float[2,{SIZE}]"
    return parse(
        f"""g ({rows} x) => ({rows} yw0, {rows} yt, {rows} ye)
        <{square} w0 = *, {square} w1 = *, {square} w2 = *> {{
            t = Transpose<perm = [1, 0]>(w1) e = Exp(w2)
            yw0 = MatMul(x, w0) yt = MatMul(x, t) ye = MatMul(x, e) }}"""
    )


def rewrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"other")


def replace(path: Path) -> None:
    shutil.copyfile(path, f"{path}.new")
    os.replace(f"{path}.new", path)


@pytest.fixture(params=[False, True], ids=["one_file", "data_file"])
def source(request, tmp_path) -> Path:
    options = {"save_as_external_data": True, "location": "w.data"} if request.param else {}
    onnx.save(model(), tmp_path / "m.onnx", **options)
    return tmp_path / "m.onnx"


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


@pytest.mark.parametrize("change", [rewrite, replace])
@pytest.mark.parametrize("stage", ["fold", "save"])
@pytest.mark.parametrize("output", ["o.onnx", "m.onnx"])
def test_changed_sources_are_rejected(source, change, stage, output) -> None:
    victims = sorted(source.parent.iterdir())
    for victim in victims:
        before = {path: path.read_bytes() for path in victims}
        changed = None

        def meddle(now: str, done: int, total: int, victim: Path = victim) -> None:
            nonlocal changed
            if now == stage and changed is None:
                change(victim)
                changed = files(victim.parent)

        with pytest.raises(ModelError, match="while it was being read") as caught:
            onnxfold.optimize_file(source, source.parent / output, progress=meddle)
        assert caught.value.file == str(victim)
        for temporary in [name for name in changed if name.endswith(".tmp")]:
            del changed[temporary]
        assert files(source.parent) == changed
        for path, content in before.items():
            path.write_bytes(content)


def test_removed_files_can_still_be_read(source) -> None:
    """The operating system keeps the content of a removed file as long as the file is mapped."""
    expected = source.parent / "expected.onnx"
    onnxfold.optimize_file(source, expected, external_data=False)

    def meddle(stage: str, done: int, total: int) -> None:
        if stage == "fold":
            for path in source.parent.glob("[mw].*"):
                path.unlink()

    output = source.parent / "o.onnx"
    onnxfold.optimize_file(source, output, external_data=False, progress=meddle)
    assert output.read_bytes() == expected.read_bytes()


def test_loaded_models_remain_usable_after_a_save_in_place(source) -> None:
    """Saving a model in place replaces files that the saved model and another model have mapped."""
    first = storage.load(source)
    second = storage.load(source)
    for target in (source, source, source.parent / "o.onnx"):
        storage.save(first, target)
        storage.save(second, target)
    weights = [m.graph.initializers["w0"].const_value.numpy() for m in (first, second)]
    np.testing.assert_array_equal(*weights)


def test_sources_that_another_program_replaces_are_rejected(source) -> None:
    with pytest.raises(ModelError):
        storage.save(storage.load(source), source, progress=lambda *_: replace(source))


def test_changed_tensors_of_another_model_are_rejected(source, tmp_path) -> None:
    onnx.save(model(), tmp_path / "other.onnx")
    other = storage.load(tmp_path / "other.onnx")
    loaded = storage.load(source)
    loaded.graph.initializers["w0"].const_value = other.graph.initializers["w0"].const_value
    rewrite(tmp_path / "other.onnx")
    with pytest.raises(ModelError, match=r"other\.onnx"):
        storage.save(loaded, tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def test_changed_tensors_of_onnx_ir_are_rejected(tmp_path) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.data")
    loaded = ir.load(tmp_path / "m.onnx")

    def meddle(done: int, total: int) -> None:
        rewrite(tmp_path / "w.data")

    with pytest.raises(ModelError, match=r"w\.data: was changed"):
        storage.save(loaded, tmp_path / "o.onnx", progress=meddle)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "w.data"]
