"""Conversion of the IR to protobuf. The caller may store the bytes of tensors elsewhere.

Types, shapes and properties of values are converted in both directions.

onnx-ir serializes types, shapes, rare attributes and some small tensors. Its ``serialize_model`` is
not used, because it reads every tensor and repeats each initializer in a ``value_info``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.ir.onnx_ir_private import is_a, meta_entry, metadata_of, nodes_of, root_cause
from onnxfold.ir.storage.checks import DTYPES
from onnxfold.ir.storage.opsets import required_imports
from onnxfold.ir.storage.tensors import ViewTensor, is_streamed, sizes_of
from onnxfold.support.errors import ModelError
from onnxfold.support.memory import paused_garbage_collection

# Keys in the ``meta`` of a value.
TYPE_KEY = "onnxfold.type_proto"  # a serialized TypeProto that onnx-ir cannot represent
QUANTIZATION_KEY = "quant_parameter_tensor_names"  # onnx-ir's key for its annotation

# Called with a tensor, whether the tensor is in an attribute, and an empty proto for the tensor.
# Writes the bytes of the tensor or their position into the proto, and returns True. Returns False
# if `to_proto` should write the complete tensor.
Locate = Callable[[ir.TensorProtocol, bool, onnx.TensorProto], bool]

_STRING = ir.DataType.STRING
_T = ir.AttributeType
_FIELDS = {_T.INT: "i", _T.INTS: "ints", _T.FLOAT: "f", _T.FLOATS: "floats"}
_FIELDS |= {_T.STRING: "s", _T.STRINGS: "strings", _T.TENSOR: "", _T.GRAPH: ""}


@paused_garbage_collection()
def to_proto(
    model: ir.Model, locate: Locate = lambda tensor, is_attribute, proto: False
) -> onnx.ModelProto:
    """Convert a model to protobuf. ``locate`` selects the position of the bytes of each tensor.

    By default, external tensors remain references, which are valid in the folder of the model. The
    bytes of all other tensors are in the result.

    Raises:
        ModelError: The model cannot be serialized.
    """
    try:
        return _Writer(locate).model(model)
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        raise ModelError(f"the model cannot be serialized: {root_cause(error)}") from error


def function_proto(function: ir.Function) -> onnx.FunctionProto:
    """Convert a function to protobuf with the bytes of all tensors, including external ones."""
    proto = onnx.FunctionProto()
    _Writer(_embed).function(proto, function)
    return proto


def add_attributes(protos: Any, node: ir.Node) -> None:
    """Add the attributes of a node to ``protos``, with the bytes of all tensors.

    The bytes of external tensors are included.
    """
    writer = _Writer(_embed)
    for attribute in node.attributes.data.values():
        writer.attribute(protos, attribute)


def _embed(tensor: ir.TensorProtocol, is_attribute: bool, proto: onnx.TensorProto) -> bool:
    if not is_a(tensor, ir.ExternalTensor):
        return False
    proto.raw_data = tensor.tobytes()
    return True


class _Writer:
    """The conversion of a model to protobuf. Each method fills a message, or adds one to a list."""

    def __init__(self, locate: Locate) -> None:
        self.locate = locate

    def model(self, model: ir.Model) -> onnx.ModelProto:
        proto = onnx.ModelProto(ir_version=model.ir_version)
        _copy_strings(proto, model, "producer_name", "producer_version", "domain", "doc_string")
        if model.model_version is not None:
            proto.model_version = model.model_version
        _import_opsets(proto, required_imports(model))
        add_entries(proto.metadata_props, model.metadata_props)
        self.graph(proto.graph, model.graph)
        for function in model.functions.values():
            self.function(proto.functions.add(), function)
        return proto

    def graph(self, proto: onnx.GraphProto, graph: ir.Graph) -> None:
        _copy_strings(proto, graph, "name", "doc_string")
        values = dict.fromkeys(graph.inputs)
        for value in values:
            write_value(proto.input.add(), value)
        for value in graph.initializers.data.values():  # faster than onnx-ir's lookup of each
            tensor = value.const_value
            values[value] = None
            if (metadata_of(value) or value.doc_string) and not value.is_graph_input():
                write_value(proto.value_info.add(), value)
            if tensor is not None:
                initializer = proto.initializer.add()
                self.tensor(initializer, tensor, is_attribute=False)
                initializer.name = value.name
        for node in nodes_of(graph):
            for value in self.node(proto.node, node):
                values[value] = None
                if not value.is_graph_output() and is_described(value):
                    write_value(proto.value_info.add(), value)
        for value in graph.outputs:
            write_value(proto.output.add(), value)
        for value in values:
            if entries := meta_entry(value, QUANTIZATION_KEY):
                annotation = proto.quantization_annotation.add(tensor_name=value.name)
                add_entries(annotation.quant_parameter_tensor_names, entries)
        add_entries(proto.metadata_props, graph.metadata_props)

    def function(self, proto: onnx.FunctionProto, function: ir.Function) -> None:
        proto.domain = function.domain  # onnx.checker requires the field even if it is empty
        _copy_strings(proto, function, "name", "overload", "doc_string")
        _import_opsets(proto, function.opset_imports)
        add_entries(proto.metadata_props, function.metadata_props)
        proto.input.extend([value.name for value in function.inputs])
        for attribute in function.attributes.values():
            if attribute.value is None:
                proto.attribute.append(attribute.name)
            else:
                self.attribute(proto.attribute_proto, attribute)
        proto.output.extend([value.name for value in function.outputs])
        for node in function:
            self.node(proto.node, node)
        for value in (*function.inputs, *(value for node in function for value in node.outputs)):
            if is_described(value):
                write_value(proto.value_info.add(), value)

    def node(self, protos: Any, node: ir.Node) -> Sequence[ir.Value]:
        """Add a node, and return its outputs."""
        inputs = ["" if value is None else value.name for value in node.inputs]
        values = node.outputs
        outputs = [value.name for value in values]
        # only calls of functions keep omitted outputs at the end
        while outputs and not (outputs[-1] or node.domain):
            outputs.pop()
        proto = protos.add(
            op_type=node.op_type,
            domain=node.domain or None,
            name=node.name or None,
            overload=node.overload or None,
            doc_string=node.doc_string or None,
            input=inputs,
            output=outputs,
        )
        if entries := metadata_of(node):
            add_entries(proto.metadata_props, entries)
        for attribute in node.attributes.data.values():
            self.attribute(proto.attribute, attribute)
        return values

    def attribute(self, protos: Any, attribute: ir.Attr) -> None:
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(protos.add(), attribute)
            return
        kind = attribute.type
        value = attribute.value
        if kind in (_T.TENSORS, _T.GRAPHS, _T.TYPE_PROTOS):
            raise ValueError(f"the type of attribute {attribute.name!r} is not supported")
        if kind not in _FIELDS:
            ir.serde.serialize_attribute_into(protos.add(), attribute)
            return
        content = {field: value} if (field := _FIELDS[kind]) else {}
        if kind in (_T.STRING, _T.STRINGS):
            content[field] = _bytes(value) if kind == _T.STRING else [*map(_bytes, value)]
        doc_string = attribute.doc_string or None
        proto = protos.add(name=attribute.name, type=int(kind), doc_string=doc_string, **content)
        if kind == _T.TENSOR:
            self.tensor(proto.t, value, is_attribute=True)
        elif kind == _T.GRAPH:
            self.graph(proto.g, value)

    def tensor(
        self, proto: onnx.TensorProto, tensor: ir.TensorProtocol, *, is_attribute: bool
    ) -> None:
        is_located = self.locate(tensor, is_attribute, proto)
        dtype = tensor.dtype
        has_raw_bytes = is_a(tensor, ViewTensor) or is_streamed(tensor)
        if not is_located and has_raw_bytes and dtype != _STRING:
            proto.raw_data = tensor.tobytes()
            is_located = True
        if is_located:
            _copy_strings(proto, tensor, "name", "doc_string")
            proto.data_type = dtype
            proto.dims.extend(sizes_of(tensor))
        else:
            ir.serde.serialize_tensor_into(proto, tensor)
            del proto.metadata_props[:]  # onnx-ir repeats them if it copies a proto
        if entries := tensor.metadata_props:
            add_entries(proto.metadata_props, entries)


def _copy_strings(proto: Any, owner: Any, *fields: str) -> None:
    """Copy the nonempty string fields of ``owner`` to ``proto``."""
    for field in fields:
        if text := getattr(owner, field):
            setattr(proto, field, text)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def describe(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Set the type, shape, doc string and metadata of a value, and return the value.

    If onnx-ir cannot represent the type, it is stored in the ``meta`` and removed from ``info``.
    """
    kind = info.type.tensor_type
    dtype = DTYPES.get(kind.elem_type)
    # UNDEFINED is 0
    if not dtype or not info.type.HasField("tensor_type") or info.type.denotation:
        if not is_representable(info.type):
            if type_ := info.type.SerializeToString():
                value.meta[TYPE_KEY] = type_
            info.ClearField("type")
        return ir.serde.deserialize_value_info_proto(info, value)
    value.type = ir.TensorType(dtype)
    has_shape = kind.HasField("shape")
    value.shape = shape_of(kind.shape.SerializeToString()) if has_shape else None
    value.doc_string = info.doc_string or None
    if info.metadata_props:
        value.metadata_props.update(entries_of(info.metadata_props) or {})
    return value


@functools.lru_cache(maxsize=1024)
def shape_of(serialized: bytes) -> ir.Shape:
    """Parse a ``TensorShapeProto``, and return a frozen shape.

    Values share shapes, because creating a shape is slow.
    """
    shape = ir.serde.deserialize_tensor_shape(onnx.TensorShapeProto.FromString(serialized))
    shape.freeze()
    return shape


@functools.lru_cache(maxsize=1024)
def static_shape(sizes: tuple[int, ...]) -> ir.Shape:
    """Return the frozen shape with these sizes.

    Tensors share shapes, because creating a shape is slow.
    """
    return ir.Shape(sizes, frozen=True)


def is_representable(proto: onnx.TypeProto) -> bool:
    """Return whether onnx-ir can represent a type.

    onnx-ir represents no maps, no opaque types, and no types without a known element type.
    """
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return is_representable(getattr(proto, kind).elem_type)
    if kind in ("tensor_type", "sparse_tensor_type"):
        element = getattr(proto, kind).elem_type
        return element in DTYPES and element != onnx.TensorProto.UNDEFINED
    return False


def write_value(proto: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Write to ``proto`` the name of a value and the properties that `describe` sets."""
    ir.serde.serialize_value_into(proto, value)
    if value.type is None and (type_ := meta_entry(value, TYPE_KEY)) is not None:
        proto.type.ParseFromString(type_)


def is_described(value: ir.Value) -> bool:
    """Return whether a value has a name, and also a type, metadata or a doc string."""
    properties = value.type, metadata_of(value), value.doc_string, meta_entry(value, TYPE_KEY)
    return bool(value.name) and any(properties)


def entries_of(proto: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Return metadata as a dictionary; None if there is none."""
    return {entry.key: entry.value for entry in proto[:]} if proto else None


def add_entries(proto: Any, entries: Mapping[str, str]) -> None:
    """Add metadata to a list of entries, sorted by key."""
    for key in sorted(entries):
        proto.add(key=key, value=entries[key])


def _import_opsets(
    proto: onnx.ModelProto | onnx.FunctionProto, versions: Mapping[str, int]
) -> None:
    for domain, version in versions.items():
        proto.opset_import.add(domain=domain or None, version=version)
