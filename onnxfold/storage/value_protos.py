"""What a model says of a value: its type, shape, documentation and metadata, read and written."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.onnx_ir_private import meta_entry, metadata_of
from onnxfold.storage.checks import DTYPES

# Keys in the ``meta`` of a value.
TYPE_KEY = "onnxfold.type_proto"  # a serialized TypeProto that onnx-ir cannot represent
QUANTIZATION_KEY = "quant_parameter_tensor_names"  # onnx-ir's key for its annotation


def describe(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Give a value the type, the shape, and what else a ``value_info`` says."""
    if not is_representable(info.type):
        if type_ := info.type.SerializeToString():
            value.meta[TYPE_KEY] = type_
        info.ClearField("type")
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type") or info.type.denotation:
        return ir.serde.deserialize_value_info_proto(info, value)
    value.type = ir.TensorType(DTYPES[kind.elem_type])
    has_shape = kind.HasField("shape")
    value.shape = shape_of(kind.shape.SerializeToString()) if has_shape else None
    value.doc_string = info.doc_string or None
    if info.metadata_props:
        value.metadata_props.update(entries_of(info.metadata_props) or {})
    return value


@functools.lru_cache(maxsize=1024)
def shape_of(serialized: bytes) -> ir.Shape:
    """Return a shape, which is frozen: many values have the same, and making it takes long."""
    return ir.serde.deserialize_tensor_shape(onnx.TensorShapeProto.FromString(serialized))


@functools.lru_cache(maxsize=1024)
def static_shape(sizes: tuple[int, ...]) -> ir.Shape:
    """Return the shape of a tensor, for the same reason."""
    return ir.Shape(sizes, frozen=True)


def is_representable(proto: onnx.TypeProto) -> bool:
    """Return whether onnx-ir has the type: maps, opaque and incomplete ones it has not."""
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return is_representable(getattr(proto, kind).elem_type)
    if kind in ("tensor_type", "sparse_tensor_type"):
        element = getattr(proto, kind).elem_type
        return element in DTYPES and element != onnx.TensorProto.UNDEFINED
    return False


def write_value(proto: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Write the name of a value, and what `describe` gave it."""
    ir.serde.serialize_value_into(proto, value)
    if value.type is None and (type_ := meta_entry(value, TYPE_KEY)) is not None:
        proto.type.ParseFromString(type_)


def is_described(value: ir.Value) -> bool:
    """Return whether a value has more information than its name."""
    return bool(
        value.name
        and (
            value.type is not None
            or metadata_of(value)
            or value.doc_string
            or meta_entry(value, TYPE_KEY) is not None
        )
    )


def entries_of(proto: Iterable[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Return metadata as a dictionary; None if there are none."""
    return {entry.key: entry.value for entry in proto} if proto else None


def add_entries(proto: Any, entries: Mapping[str, str]) -> None:
    """Add metadata, sorted by their keys."""
    for key in sorted(entries):
        proto.add(key=key, value=entries[key])
