"""The wire scan finds every large tensor, changes nothing else, and refuses what is damaged."""

from __future__ import annotations

import contextlib

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from storage_models import OPSETS, constant, everything, nested, tensor

from onnxfold import storage
from onnxfold.errors import ModelError
from onnxfold.storage import wire

THRESHOLD = 256


def large_raw_data(message, found: list[bytes]) -> list[bytes]:
    """All raw_data of THRESHOLD bytes and more that the scan is to find, by reflection."""
    for field, item in message.ListFields():
        if field.message_type is None:
            if field.name == "raw_data" and len(item) >= THRESHOLD:
                found.append(item)
        elif field.name != "training_info":
            for part in item if hasattr(item, "append") or hasattr(item, "add") else [item]:
                large_raw_data(part, found)
    return found


@st.composite
def graphs(draw, depth: int = 3) -> onnx.GraphProto:
    count = draw(st.integers(0, 3))
    sizes = st.integers(0, 200)
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
        nodes = [constant("fc", tensor("fc", draw(st.integers(0, 200))))]
        model.functions.append(helper.make_function("local", "F", [], ["fc"], nodes, OPSETS))
    return model


def scan(data: bytes) -> tuple[list[bytes], bytes]:
    found: list[bytes] = []

    def replace(offset: int, length: int) -> bytes:
        found.append(data[offset : offset + length])
        return b"#%d" % (len(found) - 1)

    pieces, size = wire.rewrite(data, THRESHOLD, replace)
    joined = wire.join(data, pieces)
    assert len(joined) == size
    return found, joined


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_scan_finds_what_protobuf_finds(model: onnx.ModelProto) -> None:
    data = model.SerializeToString()
    found, skeleton = scan(data)
    assert sorted(found) == sorted(large_raw_data(model, []))
    # Putting the tensors back gives the original bytes, with all lengths corrected twice.
    if not found:
        assert skeleton == data
        return
    marks = sorted(
        skeleton.index(b"\x4a" + bytes([len(b"#%d" % i)]) + b"#%d" % i) for i in range(len(found))
    )

    def restore(offset: int, length: int) -> bytes | None:
        text = skeleton[offset : offset + length]
        return found[int(text[1:])] if text[:1] == b"#" and text[1:].isdigit() else None

    pieces, _ = wire.rewrite(skeleton, 2, restore, marks=[m + 2 for m in marks])
    assert wire.join(skeleton, pieces) == data


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_round_trip_in_memory(model: onnx.ModelProto) -> None:
    from storage_models import normal

    again = storage.to_proto(storage.from_proto(model))
    assert normal(again) == normal(model)


def test_scan_of_everything() -> None:
    model = everything()
    found, _ = scan(model.SerializeToString())
    assert sorted(found) == sorted(large_raw_data(model, []))


def boundaries(data: bytes) -> list[int]:
    """Positions between fields, at all levels that hold messages."""
    positions: set[int] = set()

    def walk(start: int, end: int, depth: int) -> None:
        pos = start
        while pos < end:
            positions.add(pos)
            try:
                tag, pos = wire._varint(data, pos, end)
                positions.add(pos)
                if tag & 7 == 2:
                    length, pos = wire._varint(data, pos, end)
                    if pos + length > end:
                        return
                    positions.add(pos)
                    if depth < 6 and length > 2:
                        walk(pos, pos + length, depth + 1)
                    pos += length
                elif tag & 7 == 0:
                    _, pos = wire._varint(data, pos, end)
                else:
                    pos += {1: 8, 5: 4}.get(tag & 7, 1)
            except wire.WireError:
                return

    walk(0, len(data), 0)
    return sorted(p for p in positions if p < len(data))


def test_truncation_at_every_field(tmp_path) -> None:
    model = nested(8)
    model.graph.initializer.append(tensor("large", 64, 64))
    data = model.SerializeToString()
    cuts = boundaries(data)
    assert len(cuts) > 100
    path = tmp_path / "cut.onnx"
    for cut in cuts:
        path.write_bytes(data[:cut])
        # Between two top-level fields what is left is a smaller message; it may be a model.
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
        b"\x3a" + b"\xff" * 20,  # a number that does not end
        b"\x3a\xff\xff\xff\xff\x07" + b"\0" * 8192,  # 2 GiB in 8 KiB
        b"\xff",
        b"\x00" * 100,
        b"\x3b" * 8192,  # groups that do not end
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
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x3a" + wire.encode_varint(len(data)) + data)
    with pytest.raises(ModelError):
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
