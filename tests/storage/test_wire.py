"""Test that loading and saving keep all fields of a model, and that damaged files are rejected."""

import contextlib

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from storage_models import OPSETS, constant, nested, normal, tensor

from onnxfold.ir import storage
from onnxfold.ir.storage import wire
from onnxfold.support.errors import ModelError


@st.composite
def graphs(draw, depth: int = 3) -> onnx.GraphProto:
    count = draw(st.integers(0, 3))
    sizes = st.integers(0, 2000)
    initializers = [tensor(f"i{i}", draw(sizes)) for i in range(count)]
    nodes = []
    for i in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["constant", "graph", "text", "ints"]))
        if kind == "constant":
            nodes.append(constant(f"c{i}", tensor("c", draw(sizes))))
        elif kind == "graph" and depth:
            node = helper.make_node("Custom", [], [f"g{i}"], domain="custom")
            node.attribute.append(helper.make_attribute(kind, draw(graphs(depth - 1))))
            nodes.append(node)
        elif kind == "text":
            nodes.append(
                helper.make_node("Custom", [], [f"x{i}"], domain="custom", s="x" * draw(sizes))
            )
        else:
            nodes.append(
                helper.make_node(
                    "Custom", [], [f"n{i}"], domain="custom", k=[1] * draw(st.integers(1, 200))
                )
            )
    return helper.make_graph(nodes, "g" * draw(st.integers(1, 200)), [], [], initializers)


@st.composite
def models(draw) -> onnx.ModelProto:
    model = helper.make_model(draw(graphs()), opset_imports=OPSETS)
    if draw(st.booleans()):
        nodes = [constant("fc", tensor("fc", draw(st.integers(0, 2000))))]
        model.functions.append(helper.make_function("local", "F", [], ["fc"], nodes, OPSETS))
    return model


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_round_trip(tmp_path_factory, model: onnx.ModelProto) -> None:
    """Some tensors are copied, and others are large enough to be views of the file."""
    assert normal(storage.to_proto(storage.from_proto(model))) == normal(model)
    path = tmp_path_factory.getbasetemp() / "trip.onnx"
    path.write_bytes(model.SerializeToString())
    storage.save(storage.load(path), path, fsync=False)
    assert normal(onnx.load(path)) == normal(model)


def test_truncated_files(tmp_path) -> None:
    model = nested(8)
    model.graph.initializer.append(tensor("large", 64, 64))
    data = model.SerializeToString()
    path = tmp_path / "cut.onnx"
    for cut in range(0, len(data), 37):
        path.write_bytes(data[:cut])
        # A file that is cut between two top-level fields is a valid message, possibly a model.
        try:
            onnx.ModelProto.FromString(data[:cut])
            whole = True
        except Exception:
            whole = False
        if whole and cut > data.index(model.graph.SerializeToString()):
            continue
        with pytest.raises(ModelError) as caught:
            storage.load(path)
        assert caught.value.file == str(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\x3a" + b"\xff" * 9 + b"\x01" + b"x",  # graph of 2**64 - 1 bytes
        b"\x3a" + b"\xff" * 20,  # a varint that is too long
        b"\x3a\xff\xff\xff\xff\x07" + b"\0" * 8192,  # 2 GiB in 8 KiB
        b"\xff",
        b"\x00" * 100,
        b"\x3b" * 8192,  # nested groups without an end
        b"\x3f" * 8192,  # wire type 7
        b"not a model at all" * 1000,
        b"\x0a",
        b"{}",
    ],
)
def test_hostile_bytes(tmp_path, data: bytes) -> None:
    path = tmp_path / "hostile.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError):
        storage.load(path)


def test_deep_nesting(tmp_path) -> None:
    data = constant("c", tensor("c", 2000)).SerializeToString()
    for _ in range(60):  # a graph in an attribute of a node in a graph...
        for tag in (0x0A, 0x32, 0x2A):
            data = bytes([tag]) + wire.encode_varint(len(data)) + data
    for tag in (0x0A, 0x3A):  # a node of the graph of the model
        data = bytes([tag]) + wire.encode_varint(len(data)) + data
    path = tmp_path / "deep.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="messages nested more than 100 deep"):
        storage.load(path)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_flipped_bytes_never_crash(tmp_path_factory, data) -> None:
    original = nested(8).SerializeToString()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.onnx"
    path.write_bytes(damaged)
    with contextlib.suppress(ModelError):
        storage.load(path)
