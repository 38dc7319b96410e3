"""Test that an output never replaces a file that a model still requires.

The output may have another name of the file, such as a symbolic link or a hard link.
"""

import os
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from faults.test_changing_sources import files as content
from folders import names_in
from storage_models import linear, run, write

import onnxfold
from onnxfold.ir import storage
from onnxfold.support.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the model ``m.model``, its data file ``w.data``, and links to both."""
    write(tmp_path / "m.model", linear(), save_as_external_data=True, location="w.data")
    (tmp_path / "soft.data").symlink_to("w.data")
    (tmp_path / "hard.data").hardlink_to(tmp_path / "w.data")
    (tmp_path / "soft.model").symlink_to("m.model")
    (tmp_path / "hard.model").hardlink_to(tmp_path / "m.model")
    return tmp_path


@pytest.mark.parametrize("name", ["w.data", "soft.data", "hard.data"])
def test_the_model_does_not_replace_a_data_file(folder, name) -> None:
    before = content(folder)
    for external_data in (None, False, "o.data"):
        with pytest.raises(UsageError, match=r"contains weights of 'm\.model'"):
            onnxfold.optimize_file(folder / "m.model", folder / name, external_data=external_data)
    with pytest.raises(UsageError):
        storage.save(ir.load(folder / "m.model"), folder / name)
    stages: list[str] = []
    with pytest.raises(UsageError):  # before any work is done
        onnxfold.optimize_file(
            folder / "m.model", folder / name, progress=lambda stage, *_: stages.append(stage)
        )
    assert set(stages) == {"load"}
    assert content(folder) == before


@pytest.mark.parametrize("name", ["w.data", "soft.data", "hard.data", "m.model", "hard.model"])
def test_data_do_not_replace_a_file_of_the_source(folder, name) -> None:
    before = content(folder)
    for share in (False, True):
        with pytest.raises(
            UsageError, match=r"contains weights of|is the model itself|to be shared"
        ):
            model = storage.load(folder / "m.model")
            model.graph.initializers["b2"] = ir.Value(
                name="b2", const_value=ir.tensor(np.ones(5000, np.float32), name="b2")
            )
            storage.save(model, folder / "o.onnx", external_data=name, share_weights=share)
    assert content(folder) == before


def test_data_with_the_default_name_do_not_replace_a_file_of_the_source(folder) -> None:
    os.rename(folder / "w.data", folder / "o.onnx.data")
    model = onnx.load(folder / "m.model", load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "o.onnx.data"
    onnx.save(model, folder / "m.model")
    # The older model at the target also uses the data file. When the model is replaced, the data
    # file looks like a leftover.
    shutil.copy(folder / "m.model", folder / "o.onnx")
    expected = run(folder / "m.model")
    with pytest.raises(UsageError, match="contains weights of"):
        onnxfold.optimize_file(folder / "m.model", folder / "o.onnx")
    onnxfold.optimize_file(folder / "m.model", folder / "o.onnx", external_data=False)
    assert (run(folder / "m.model") == expected).all()
    assert (run(folder / "o.onnx") == expected).all()


@pytest.mark.parametrize("name", ["m.onnx.bak", "m.onnx~", "m.orig", "M.ONNX"])
def test_a_copy_of_the_model_keeps_its_data(tmp_path, name) -> None:
    path = tmp_path / "m.onnx"
    write(path, linear(), save_as_external_data=True, location="m.onnx.data")
    expected = run(shutil.copy(path, tmp_path / name))
    with pytest.raises(UsageError, match=f"contains weights of '{name}'"):
        onnxfold.optimize_file(path, path)
    onnxfold.optimize_file(path, path, external_data=False)
    assert (run(tmp_path / name) == expected).all()


@pytest.mark.parametrize("load", [storage.load, ir.load])
def test_a_model_and_its_data_are_replaced_together(folder, load) -> None:
    expected = run(folder / "m.model")
    path = folder / "m.model"
    os.unlink(folder / "hard.data")  # onnx-ir does not read a file with two names
    for target in (path, folder / "soft.model"):
        model = load(path)
        model.graph.initializers["w"].const_value = ir.tensor(
            -model.graph.initializers["w"].const_value.numpy(), name="w"
        )
        storage.save(model, target, external_data="w.data")
    assert (run(path) == expected).all()
    assert names_in(folder) == ["hard.model", "m.model", "soft.data", "soft.model", "w.data"]
