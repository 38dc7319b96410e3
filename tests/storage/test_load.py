"""Test that loading creates views instead of copies, and the errors of invalid models."""

import gc
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import external as external_tensor
from onnx import TensorProto, helper, numpy_helper
from processes import python
from storage_models import (
    OPSETS,
    all_fields,
    array,
    constant,
    everything,
    fields_of,
    linear,
    nested,
    normal,
    parsed,
    sparse,
    tensor,
    write,
)

import onnxfold
from onnxfold.ir import storage
from onnxfold.ir.storage.load import external_locations
from onnxfold.support.errors import ExternalDataError, ModelError
from onnxfold.support.system import pread


def opened(tmp_path, model: onnx.ModelProto):
    return storage.load(write(tmp_path / "m.onnx", model))


def external(tmp_path, model: onnx.ModelProto | None = None, **entries: str):
    """Write a model with external data, and return its path.

    ``entries`` replace values in the external data of the first initializer.
    """
    path = tmp_path / "m.onnx"
    onnx.save(
        model or linear(), path, save_as_external_data=True, location="m.bin", size_threshold=0
    )
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key in entries:
            entry.value = entries[entry.key]
    return write(path, model)


def test_large_tensors_are_views(tmp_path) -> None:
    model = opened(tmp_path, linear())
    weight = model.graph.initializers["w"].const_value
    assert isinstance(weight, storage.ViewTensor) and weight.span is not None
    assert weight.numpy().base is not None and not weight.numpy().flags.writeable
    np.testing.assert_array_equal(weight.numpy(), array(64, 64))
    assert weight.tobytes() == array(64, 64).tobytes()
    with open(tmp_path / "out", "w+b") as file:
        weight.tofile(file)
        file.seek(0)
        assert file.read() == weight.tobytes()
    span = storage.span_of(weight)
    assert bytes(span.file.content[span.offset : span.offset + span.length]) == weight.tobytes()
    with span.file.descriptor() as fd:
        assert pread(fd, span.length, span.offset) == weight.tobytes()
    span.file.release(span.offset, span.length)
    np.testing.assert_array_equal(np.asarray(weight), array(64, 64))
    assert model.meta["onnxfold.source"] == str(tmp_path / "m.onnx")
    assert model.meta["onnxfold.external_data"] is False
    assert weight.shape == [64, 64] and weight.dtype == ir.DataType.FLOAT and weight.nbytes == 4**7


def test_tensors_everywhere(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", nested())
    model = storage.load(path)
    tensors = []
    for graph in [model.graph, *(f.graph for f in model.functions.values())]:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            if node.op_type == "Constant":
                tensors.append(node.attributes["value"].value)
    tensors += [v.const_value for v in model.graph.initializers.values()]
    assert all(storage.span_of(tensor) for tensor in tensors) and len(tensors) == 6
    assert normal(storage.to_proto(model)) == normal(onnx.load(path))


@pytest.mark.parametrize(
    "dtype", [d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]
)
def test_every_dtype(tmp_path, dtype: ir.DataType) -> None:
    if dtype.value not in TensorProto.DataType.values():
        pytest.skip("onnx does not define this dtype")
    stored = np.random.default_rng(0).integers(0, 64, 8192 * dtype.bitwidth // 8, dtype=np.uint8)
    proto = TensorProto(name="w", data_type=dtype.value, dims=[64, 128], raw_data=stored.tobytes())
    model = opened(tmp_path, graph_model([], [proto]))
    loaded = model.graph.initializers["w"].const_value
    expected = ir.serde.TensorProtoTensor(proto).numpy()
    assert loaded.numpy().dtype == expected.dtype
    assert loaded.numpy().tobytes() == expected.tobytes()
    assert loaded.tobytes() == stored.tobytes()
    for external_data in (False, True):
        storage.save(model, tmp_path / "o.onnx", external_data=external_data, fsync=False)
        again = storage.load(tmp_path / "o.onnx").graph.initializers["w"].const_value
        assert again.tobytes() == stored.tobytes() and again.dtype == dtype
        assert again.numpy().tobytes() == expected.tobytes()


def test_external_tensors_share_one_mapping(tmp_path) -> None:
    path = external(tmp_path)
    model = storage.load(path)
    w = model.graph.initializers["w"].const_value
    b = next(n for n in model.graph if n.op_type == "Constant").attributes["value"].value
    assert isinstance(w, ir.ExternalTensor)
    np.testing.assert_array_equal(w.numpy(), array(64, 64))
    span = storage.span_of(w)
    assert span.file is storage.MappedFile.open(tmp_path / "m.bin")
    assert model.meta["onnxfold.external_data"] is True
    assert b.numpy().shape == (64,)
    plain = ir.load(path).graph.initializers["w"].const_value
    assert storage.span_of(plain) == span
    w.release()
    assert w.tobytes() == array(64, 64).tobytes()


def test_hard_links_are_accepted(tmp_path) -> None:
    path = external(tmp_path)
    os.link(tmp_path / "m.bin", tmp_path / "copy.bin")
    weight = storage.load(path).graph.initializers["w"].const_value
    np.testing.assert_array_equal(weight.numpy(), array(64, 64))
    assert weight.tobytes() == array(64, 64).tobytes()


def test_length_may_be_omitted(tmp_path) -> None:
    model = onnx.load(external(tmp_path), load_external_data=False)
    entries = model.graph.initializer[0].external_data
    (length,) = (e for e in entries if e.key == "length")
    length.value = "0"  # like a missing length, 0 means the rest of the file
    zero = opened(tmp_path, model).graph.initializers["w"].const_value
    entries.remove(length)
    weight = opened(tmp_path, model).graph.initializers["w"].const_value
    assert zero.tobytes() == weight.tobytes() == array(64, 64).tobytes()


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"location": "/etc/passwd"}, "absolute"),
        ({"location": "/dev/zero"}, "absolute"),
        ({"location": "../m.bin"}, "outside of"),
        ({"location": "a/../../m.bin"}, "outside of"),
        ({"location": "..\\m.bin"}, "outside of"),
        ({"location": "C:\\m.bin"}, "absolute"),
        ({"location": "link.bin"}, "symbolic link"),
        ({"location": "folder_link/m.bin"}, "symbolic link"),
        ({"location": "missing.bin"}, "No such file"),
        ({"location": "folder"}, "directory"),
        ({"location": "."}, "."),
        ({"location": ""}, "not a file name"),
        ({"location": "*/_ORT_MEM_ADDR_/*"}, "No such file"),
        ({"offset": "100000"}, "bytes"),
        ({"offset": str(2**63)}, "bytes"),
        ({"length": "16"}, "the length of its external data is"),
        ({"length": str(2**70)}, "the length of its external data is"),
        ({"length": "-1"}, "non-negative"),
        ({"offset": "-4096"}, "non-negative"),
        ({"offset": "x"}, "non-negative"),
    ],
)
def test_external_data_is_checked(tmp_path, entries: dict[str, str], reason: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "m.bin").write_bytes(bytes(100000))
    (folder / "link.bin").symlink_to(tmp_path / "m.bin")
    (folder / "folder_link").symlink_to(tmp_path)
    (folder / "folder").mkdir()
    path = external(folder, **entries)
    with pytest.raises(ModelError, match=reason) as caught:
        storage.load(path)
    assert caught.value.file == str(path)
    if "length" not in entries and "offset" not in entries:
        assert isinstance(caught.value, ExternalDataError)
        failed = onnxfold.batch(path, tmp_path / "out").failed  # batch checks locations, too
        assert str(path) in str(failed[0].reason)
        with pytest.raises(Exception, match="xternal"):  # onnxruntime raises its own errors
            onnxfold.InferenceSession(path)


def test_external_data_is_checked_in_subgraphs_and_functions(tmp_path) -> None:
    for where in ("then", "function"):
        model = nested()
        if where == "then":
            target = model.graph.node[0].attribute[1].g.initializer[0]
        else:
            target = model.functions[0].node[0].attribute[0].t
        target.CopyFrom(external_tensor(target.name, target.dims, location="../secret"))
        with pytest.raises(ExternalDataError, match="outside of"):
            opened(tmp_path, model)
    target.CopyFrom(external_tensor("", target.dims, location="gone"))  # the error names the node
    with pytest.raises(ExternalDataError, match=r"tensor 'Constant -> .*data file 'gone'"):
        opened(tmp_path, model)


def test_links_within_a_store(tmp_path) -> None:
    """A model and its data are links into one store, as in the caches of model hubs."""
    blobs = tmp_path / "blobs"
    snapshot = tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    external(blobs)
    (snapshot / "m.onnx").symlink_to(blobs / "m.onnx")
    (snapshot / "m.bin").symlink_to(blobs / "m.bin")
    weight = storage.load(snapshot / "m.onnx").graph.initializers["w"].const_value
    assert weight.tobytes() == array(64, 64).tobytes()


def test_files_that_cannot_be_read(tmp_path) -> None:
    (tmp_path / "empty.onnx").touch()
    files = [("none.onnx", "no such file"), ("", "directory"), ("empty.onnx", "empty")]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.onnx")
        files.append(("pipe.onnx", "regular"))
    for name, reason in files:
        with pytest.raises(ModelError, match=reason):
            storage.load(tmp_path / name)
    with pytest.raises(ModelError):
        storage.load("with\0zero")


def graph_model(nodes, initializers=()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [], [], list(initializers))
    return helper.make_model(graph, opset_imports=OPSETS)


def hostile(**fields) -> TensorProto:
    return TensorProto(name="w", **{"data_type": TensorProto.FLOAT, **fields})


RAW = bytes(8192)


@pytest.mark.parametrize(
    ("model", "reason", "node"),
    [
        ({"dims": [-1], "raw_data": RAW}, "negative", "w"),
        ({"dims": [2**62, 2**62], "raw_data": RAW}, "has more than", "w"),
        ({"dims": [2**62] * 1000, "raw_data": RAW}, "1000 dim", "w"),
        ({"dims": [2**40], "raw_data": RAW}, "has 8192", "w"),
        ({"dims": [4], "raw_data": b"abc"}, "has 3", "w"),
        ({"dims": [2**40]}, "has 0", "w"),
        ({"dims": [4], "float_data": [1.0]}, "has 1", "w"),
        ({"dims": [2048], "data_type": 8, "raw_data": RAW}, "string", "w"),
        ({"dims": [2048], "data_type": 77, "raw_data": RAW}, "unknown", "w"),
        ({"dims": [2048], "data_type": 0, "raw_data": RAW}, "without", "w"),
        ("g () => (float y) { [id] y = Identity(x) }", "'x' is not defined", "id"),
        ("g (float x) => () { [a] y = Identity(x) [id] y = Identity(x) }", "already defined", "id"),
        ("g (float x, float y) => () { [id] y = Identity(x) }", "already defined", "id"),
        ("g (float x) => (float z) { [id] y = Identity(x) }", "'z' of graph 'g' is not comp", None),
        ("g (float x, float x) => () { }", "declared twice", None),
    ],
)
def test_inconsistent_models(tmp_path, caplog, model, reason: str, node: str | None) -> None:
    """Test invalid graphs, and invalid tensors as initializers and as values of Constants."""
    models = (
        [parsed(f'<ir_version: 9, opset_import: ["" : 17]> {model}')]
        if node != "w"
        else [
            graph_model([], initializers=[hostile(**model)]),
            graph_model([constant("c", hostile(**model))]),
        ]
    )
    for bad, name in zip(models, (node, "Constant -> c"), strict=False):
        path = write(tmp_path / "m.onnx", bad)
        with pytest.raises(ModelError, match=reason) as caught:
            storage.load(path)
        assert (caught.value.file, caught.value.node) == (str(path), name)
        with pytest.raises(ModelError, match=reason):
            storage.from_proto(bad)
    assert not caplog.records


@pytest.mark.parametrize(
    "change",
    [
        {"indices": numpy_helper.from_array(np.array([1, 6, 12], np.int64))},
        {"indices": numpy_helper.from_array(np.array([1, 6, -1], np.int64))},
        {"indices": numpy_helper.from_array(np.array([1, 6], np.int64))},
        {"indices": numpy_helper.from_array(np.array([[0, 0], [1, 1], [2, 4]], np.int64))},
        {"indices": numpy_helper.from_array(np.array([1, 6, 2], np.float32))},
        {"dims": [3, -4]},
        {"dims": [2**62, 2**62]},
        {"dims": [2**15, 2**14]},  # 2 GiB as a dense tensor
        {"values": numpy_helper.from_array(np.array(1.0, np.float32))},
        {"values": helper.make_tensor("sp", onnx.TensorProto.STRING, [3], [b"a", b"b", b"c"])},
    ],
)
def test_hostile_sparse_tensors(tmp_path, change) -> None:
    bad = sparse("sp")
    for name, new in change.items():
        if name == "dims":
            bad.dims[:] = new
        else:
            getattr(bad, name).CopyFrom(new)
    model = graph_model([])
    model.graph.sparse_initializer.append(bad)
    with pytest.raises(ModelError):
        opened(tmp_path, model)


def test_a_sparse_tensor_reads_no_other_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_bytes(bytes(12))
    model = graph_model([])
    model.graph.sparse_initializer.append(sparse("sp"))
    values = model.graph.sparse_initializer[0].values
    values.CopyFrom(external_tensor(values.name, values.dims, location="other"))
    with pytest.raises(ModelError, match="external data is not supported"):
        opened(tmp_path, model)


def test_the_total_size_of_sparse_tensors_is_limited(tmp_path) -> None:
    model = graph_model([])
    for k in range(3):
        model.graph.sparse_initializer.append(sparse(f"s{k}"))
        model.graph.sparse_initializer[k].dims[:] = [50, 100]
    assert {"s0", "s1", "s2"} <= {*opened(tmp_path, model).graph.initializers}
    model.graph.sparse_initializer[2].dims[:] = [50, 200]
    with pytest.raises(ModelError, match="64 KiB"):
        opened(tmp_path, model)


@pytest.mark.parametrize("dtype", [np.int64, np.int8])  # onnxruntime also accepts int8 indices
@pytest.mark.parametrize("coordinates", [False, True])
def test_small_sparse_tensors_become_dense(tmp_path, coordinates, dtype) -> None:
    places = np.array([1, 6, 11], np.int64)
    expected = np.zeros(12, np.float32)
    expected[places] = [1.5, -2.0, 3.0]
    node = helper.make_node("Constant", [], ["c"], sparse_value=sparse("v"))
    model = graph_model([node])
    model.graph.sparse_initializer.append(sparse("sp"))
    at = np.stack(np.unravel_index(places, (3, 4)), axis=1) if coordinates else places
    indices = numpy_helper.from_array(at.astype(dtype))
    model.graph.sparse_initializer[0].indices.CopyFrom(indices)
    loaded = opened(tmp_path, model)
    (constant,) = loaded.graph
    for stored in (loaded.graph.initializers["sp"].const_value, constant.attributes["value"].value):
        np.testing.assert_array_equal(stored.numpy(), expected.reshape(3, 4))


def test_all_fields_survive_a_round_trip(tmp_path) -> None:
    original = everything()
    expected = normal(original)
    again = storage.from_proto(original)
    assert normal(original) == expected, "the caller's proto was changed"
    assert normal(storage.to_proto(again)) == expected
    assert normal(storage.to_proto(again)) == expected, "the model was changed"
    model = opened(tmp_path, original)
    storage.save(model, tmp_path / "o.onnx")
    assert normal(onnx.load(tmp_path / "o.onnx")) == expected
    storage.save(storage.load(tmp_path / "o.onnx"), tmp_path / "o.onnx", external_data=True)
    model = storage.load(tmp_path / "o.onnx")
    storage.save(model, tmp_path / "p.onnx", external_data=False)
    assert normal(onnx.load(tmp_path / "p.onnx")) == expected
    assert "onnxfold" not in str(storage.to_proto(model))


def test_the_model_with_all_fields_is_complete() -> None:
    """Storage must read and write each field of the format, or this test must list the field.

    The test fails if a new release of onnx adds a field.
    """
    elsewhere = {
        "data_location",
        "external_data",
    }  # tested by other tests, because saving changes them
    unwritten = {"segment", "begin", "end"}  # no exporter divides tensors into segments
    refused = {"sparse_tensors", "sparse_tensor", "sparse_initializer"}
    refused |= {"dims", "values", "indices"}  # of a sparse tensor
    refused |= {"tensors", "graphs", "type_protos"}  # no operator of ONNX has such attributes
    training = {"training_info", "initialization", "algorithm"}  # dropped
    training |= {"initialization_binding", "update_binding"}
    devices = all_fields(onnx.DeviceConfigurationProto.DESCRIPTOR)  # also dropped
    devices |= all_fields(onnx.NodeDeviceConfigurationProto.DESCRIPTOR)
    devices |= {"onnx.ModelProto.configuration", "onnx.NodeProto.device_configurations"}
    missing = all_fields(onnx.ModelProto.DESCRIPTOR) - fields_of(everything()) - devices
    names = {name.rpartition(".")[2] for name in missing}
    assert names == elsewhere | unwritten | refused | training


def test_fields_that_inference_does_not_use_are_dropped(tmp_path, caplog) -> None:
    expected = linear()
    trained = linear()
    placed = linear()
    future = linear()
    trained.training_info.add().algorithm.name = "sgd"
    placed.configuration.add(name="cfg", num_devices=1, device=["cpu:0"])
    placed.graph.node[0].device_configurations.add(configuration_id="cfg", pipeline_stage=1)
    for message in (future, future.graph, future.graph.node[0]):
        message.MergeFromString(b"\xa2\x38\x03new")  # number 900, a string
    for model, reason in (
        (trained, "training information"),
        (placed, "device configurations"),
        (future, "does not define"),
    ):
        caplog.clear()
        storage.save(opened(tmp_path, model), tmp_path / "o.onnx")
        assert onnx.load(tmp_path / "o.onnx") == expected
        (record,) = caplog.records
        assert reason in record.getMessage()


def test_bfloat16_in_typed_fields(tmp_path) -> None:
    t = helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    model = opened(tmp_path, graph_model([], initializers=[t]))
    loaded = model.graph.initializers["w"].const_value.numpy()
    assert loaded.dtype == ml_dtypes.bfloat16 and loaded.tolist() == [1, 2, 3]


def test_texts_that_are_not_utf8(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    model = linear()
    model.graph.node[0].doc_string = "DOCSTR"
    data = model.SerializeToString()
    for text, place in (
        (b"mul", "name .* of a Node"),
        (b"MatMul", "op_type .* of a Node"),
        (b"batch", "dim_param .* of a Dimension"),
        (b"DOCSTR", "doc_string .* of a Node"),
    ):
        path.write_bytes(data.replace(text, b"\xd6" * len(text)))
        with pytest.raises(ModelError, match=f"{place} is not UTF-8") as caught:
            storage.load(path)
        assert caught.value.file == str(path)


def test_duplicate_initializers_do_not_crash(tmp_path) -> None:
    model = graph_model([], initializers=[tensor("w", 2000), tensor("w", 2000, seed=1)])
    loaded = opened(tmp_path, model)
    assert loaded.graph.initializers["w"].const_value.tobytes() == array(2000, seed=1).tobytes()


def test_import_is_light() -> None:
    code = "import onnxfold.ir.storage, sys; assert 'onnxruntime' not in sys.modules"
    python("-c", code)


def test_reading_external_locations_leaves_no_file_mapped(tmp_path) -> None:
    """Some systems cannot replace mapped files.

    A mapping must therefore end before the garbage collector runs.
    """
    path = write(tmp_path / "m.onnx", linear())
    gc.collect()
    gc.disable()
    try:
        assert external_locations(str(path)) == set()
        assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    finally:
        gc.enable()
