"""Test that `VerbatimModel` copies the unchanged parts of a model, and takes little memory."""

import os
import sys

import onnx
import pytest
from folders import names_in
from processes import python
from storage_models import everything, linear, sparse, tensor, write

from onnxfold.ir import storage
from onnxfold.ir.storage import VerbatimModel
from onnxfold.support.errors import ModelError, UsageError

EXTERNAL = {"save_as_external_data": True, "location": "in.bin", "size_threshold": 0}


def test_all_fields_are_kept(tmp_path) -> None:
    """The model has fields that `ir.Model` lacks."""
    model = everything()
    model.graph.sparse_initializer.append(sparse("sp"))
    model.training_info.add().initialization.initializer.append(tensor("t", 64, 64))
    model.graph.node.reverse()
    model.graph.value_info.add(name="nothing")
    source = write(tmp_path / "in.onnx", model)
    report = VerbatimModel(storage.load(source)).save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()
    assert report.bytes_total == source.stat().st_size


def test_a_changed_message(tmp_path) -> None:
    source = write(tmp_path / "in.onnx", linear())
    verbatim = VerbatimModel(storage.load(source))
    verbatim.proto.graph.value_info.add(name="h", doc_string="x" * 100)
    verbatim.save(source)
    changed = onnx.load(source)
    assert changed.graph.value_info.pop().name == "h"
    assert changed == linear()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("where", ["in.onnx", "out.onnx", "other/out.onnx"])
def test_data_files(tmp_path, where: str, share: bool) -> None:
    model = linear()
    model.graph.initializer.add(name="empty", data_type=1, dims=[0], raw_data=b"")
    source = write(tmp_path / "in.onnx", model, **EXTERNAL)
    before = onnx.load(source, load_external_data=False), onnx.load(source)
    status = os.stat(tmp_path / "in.bin")
    target = tmp_path / where
    target.parent.mkdir(exist_ok=True)
    report = VerbatimModel(storage.load(source)).save(target, share_weights=share)
    assert os.stat(tmp_path / "in.bin") == status
    assert storage.load(target).meta["onnxfold.external_data"]
    contents = {weight.name: weight.raw_data for weight in onnx.load(target).graph.initializer}
    assert contents == {weight.name: weight.raw_data for weight in before[1].graph.initializer}
    if target == source or (share and target.parent == tmp_path):
        after = onnx.load(target, load_external_data=False)
        assert after.graph.initializer[0] == before[0].graph.initializer[0]
        assert names_in(tmp_path) == sorted({"in.bin", "in.onnx", target.name})
        assert report.bytes_total == target.stat().st_size
        assert report.bytes_shared == sum(map(len, contents.values()))
    else:
        assert names_in(target.parent) == sorted(
            {"out.onnx", "out.onnx.data", *(["in.bin", "in.onnx"] if where == "out.onnx" else [])}
        )
        assert report.bytes_total == sum(
            os.stat(target.parent / name).st_size for name in ("out.onnx", "out.onnx.data")
        )
        assert report.bytes_shared == 0


def test_a_file_that_is_in_use_is_not_replaced(tmp_path) -> None:
    source = write(tmp_path / "in.onnx", linear(), **EXTERNAL)
    with pytest.raises(UsageError, match="contains weights of"):
        VerbatimModel(storage.load(source)).save(tmp_path / "in.bin")
    verbatim = VerbatimModel(storage.load(source))
    with open(tmp_path / "in.bin", "ab") as file:
        file.write(b"more")
    with pytest.raises(ModelError, match="was changed by another program"):
        verbatim.save(source)
    assert names_in(tmp_path) == ["in.bin", "in.onnx"]


CODE = """
import sys
from onnxfold.ir import storage
from onnxfold.support.system import peak_rss_bytes
start = peak_rss_bytes()
storage.VerbatimModel(storage.load(sys.argv[1])).save(sys.argv[2], fsync=False)
print((peak_rss_bytes() - start) >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("external", [False, True])
def test_weights_take_no_memory(tmp_path, external: bool) -> None:
    model = linear()
    chunk = bytes(1 << 20)
    for k in range(100):
        model.graph.initializer.add(name=f"c{k}", data_type=1, dims=[1 << 18], raw_data=chunk)
    source = write(tmp_path / "in.onnx", model, **(EXTERNAL if external else {}))
    assert int(python("-c", CODE, source, tmp_path / "out.onnx")) < 50
