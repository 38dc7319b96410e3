"""From the IR to protobuf: one walk, with what `decode` kept aside, without large tensors' bytes.

onnx-ir writes types, shapes, most attributes and small tensors; `decode` says why graphs are walked
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.memory import paused_garbage_collection
from onnxfold.onnx_ir_private import entries_of, is_a, nodes_of, noted
from onnxfold.storage.decode import (
    BARE_DOMAIN_KEY,
    HAS_UNKNOWN_KEY,
    LAST_WITHOUT_FUNCTION_INFO,
    QUANTIZATION_KEY,
    TRAINING_KEY,
    TYPE_KEY,
    UNKNOWN_KEY,
    VALUE_INFO_KEY,
)
from onnxfold.storage.tensors import SparseTensor

# Given a tensor, whether it is in an attribute, and an empty proto for it: writes into the proto
# where the bytes are to be found, or returns False, and they are written there themselves.
Place = Callable[[ir.TensorProtocol, bool, onnx.TensorProto], bool]

_A = onnx.AttributeProto
_T = ir.AttributeType
_FIRST_WITH_DEVICES = 11


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Convert a model to protobuf, all of it in memory.

    External tensors stay references: they are valid in the folder the model came from.

    Raises:
        ModelError: The model cannot be expressed, for example a value without a name.
    """
    return encode(model, lambda tensor, is_attribute, proto: False)


@paused_garbage_collection()
def encode(model: ir.Model, place: Place) -> onnx.ModelProto:
    """Convert a model, leaving out the bytes of some tensors. The model is not changed.

    Args:
        model: The model.
        place: Says where the bytes of a tensor are.

    Raises:
        ModelError: See `to_proto`.
    """
    try:
        return _Writer(model, place).model()
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"the model cannot be serialized: {cause}") from error


class _Writer:
    def __init__(self, model: ir.Model, place: Place) -> None:
        self.source = model
        self.place = place
        self.has_unknown = bool(model.meta.get(HAS_UNKNOWN_KEY))
        self.is_bare = bool(model.meta.get(BARE_DOMAIN_KEY))

    def model(self) -> onnx.ModelProto:
        model = self.source
        proto = onnx.ModelProto(ir_version=model.ir_version)
        _set(proto, model, "producer_name", "producer_version", "domain", "doc_string")
        if model.model_version:
            proto.model_version = model.model_version
        self.opsets(proto.opset_import, model.opset_imports)
        _add_entries(proto.metadata_props, model.metadata_props)
        if model.ir_version >= _FIRST_WITH_DEVICES:
            for devices in model.device_configurations:
                proto.configuration.append(ir.serde.serialize_model_configuration(devices))
        self.graph(proto.graph, model.graph)
        for function in model.functions.values():
            self.function(proto.functions.add(), function, proto.graph)
        for wire in model.meta.get(TRAINING_KEY, ()):
            proto.training_info.add().ParseFromString(wire)
        self.add_unknown(proto, model)
        return proto

    def opsets(self, proto: Any, opsets: Mapping[str, int]) -> None:
        for domain, version in opsets.items():
            entry = proto.add(version=version)
            if domain or not self.is_bare:  # an empty one is the default
                entry.domain = domain

    def graph(self, proto: onnx.GraphProto, graph: ir.Graph) -> None:
        _set(proto, graph, "name", "doc_string")
        annotated: dict[str, Mapping[str, str]] = {}

        def annotate(value: ir.Value) -> None:
            if (entries := noted(value, QUANTIZATION_KEY)) and value.name:
                annotated[value.name] = entries

        for value in graph.inputs:
            annotate(value)
            self.value(proto.input.add(), value)
        for value in graph.initializers.values():
            annotate(value)
            tensor = value.const_value
            is_told = value.is_graph_input() or value.is_graph_output()
            if not is_told and _is_described(value) and not _is_plain(value, tensor):
                self.value(proto.value_info.add(), value)
            if is_a(tensor, SparseTensor):
                proto.sparse_initializer.append(tensor.proto)
                _set(proto.sparse_initializer[-1].values, value, "name")
            elif tensor is not None:
                self.tensor(proto.initializer.add(), tensor, is_attribute=False)
                _set(proto.initializer[-1], value, "name")
        for node in nodes_of(graph):
            self.node(proto.node.add(), node)
            for value in node.outputs:
                annotate(value)
                if not value.is_graph_output() and _is_described(value):
                    self.value(proto.value_info.add(), value)
        for value in graph.outputs:
            annotate(value)
            self.value(proto.output.add(), value)
        for name, entries in annotated.items():
            annotation = proto.quantization_annotation.add(tensor_name=name)
            _add_entries(annotation.quant_parameter_tensor_names, entries)
        _add_entries(proto.metadata_props, graph.metadata_props)
        self.add_unknown(proto, graph)

    def function(
        self, proto: onnx.FunctionProto, function: ir.Function, main: onnx.GraphProto
    ) -> None:
        _set(proto, function, "domain", "name", "overload", "doc_string")
        self.opsets(proto.opset_import, function.opset_imports)
        _add_entries(proto.metadata_props, function.metadata_props)
        is_old = self.source.ir_version <= LAST_WITHOUT_FUNCTION_INFO
        infos = main.value_info if is_old else proto.value_info

        def describe(value: ir.Value) -> None:
            if _is_described(value):
                info = infos.add()
                self.value(info, value)
                if is_old:
                    info.name = f"{function.domain}::{function.name}/{value.name}"

        for value in function.inputs:
            proto.input.append(value.name)
            describe(value)
        for attribute in function.attributes.values():
            if attribute.value is None:
                proto.attribute.append(attribute.name)
            else:
                self.attribute(proto.attribute_proto.add(), attribute)
        proto.output.extend([value.name for value in function.outputs])
        for node in function:
            self.node(proto.node.add(), node)
            for value in node.outputs:
                describe(value)
        self.add_unknown(proto, function)

    def node(self, proto: onnx.NodeProto, node: ir.Node) -> None:
        _set(proto, node, "op_type", "domain", "name", "overload", "doc_string")
        if entries := entries_of(node):
            _add_entries(proto.metadata_props, entries)
        proto.input.extend(["" if value is None else value.name for value in node.inputs])
        outputs = [value.name for value in node.outputs]
        while outputs and not outputs[-1]:
            outputs.pop()
        proto.output.extend(outputs)
        for attribute in node.attributes.values():
            self.attribute(proto.attribute.add(), attribute, node)
        if node.device_configurations and self.source.ir_version >= _FIRST_WITH_DEVICES:
            for devices in node.device_configurations:
                made = ir.serde.serialize_node_device_configuration(devices)
                proto.device_configurations.append(made)
        self.add_unknown(proto, node)

    def value(self, proto: onnx.ValueInfoProto, value: ir.Value) -> None:
        _set(proto, value, "name")
        if entries := entries_of(value):
            _add_entries(proto.metadata_props, entries)
        if value.type is not None:
            ir.serde.serialize_type_into(proto.type, value.type)
            if value.shape is not None:
                ir.serde.serialize_shape_into(proto.type, value.shape)
        elif (wire := noted(value, TYPE_KEY)) is not None:
            proto.type.ParseFromString(wire)
        if value.doc_string:
            proto.doc_string = value.doc_string
        self.add_unknown(proto, value)

    def attribute(
        self, proto: onnx.AttributeProto, attribute: ir.Attr, node: ir.Node | None = None
    ) -> None:
        kind, value = attribute.type, attribute.value
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(proto, attribute)
        elif kind == _T.TENSOR and is_a(value, SparseTensor):
            proto.sparse_tensor.CopyFrom(value.proto)
            proto.type = _A.SPARSE_TENSOR
        elif kind == _T.TENSOR:
            self.tensor(proto.t, value, is_attribute=True)
            proto.type = _A.TENSOR
        elif kind == _T.TENSORS and value and all(isinstance(t, SparseTensor) for t in value):
            proto.sparse_tensors.extend([tensor.proto for tensor in value])
            proto.type = _A.SPARSE_TENSORS
        elif kind == _T.TENSORS:
            for tensor in value:
                self.tensor(proto.tensors.add(), tensor, is_attribute=True)
            proto.type = _A.TENSORS
        elif kind == _T.GRAPH:
            self.graph(proto.g, value)
            proto.type = _A.GRAPH
        elif kind == _T.GRAPHS:
            for graph in value:
                self.graph(proto.graphs.add(), graph)
            proto.type = _A.GRAPHS
        elif kind == _T.STRING:
            proto.s = _bytes(value)
            proto.type = _A.STRING
        elif kind == _T.STRINGS:
            proto.strings.extend(map(_bytes, value))
            proto.type = _A.STRINGS
        else:
            ir.serde.serialize_attribute_into(proto, attribute)
            return
        _set(proto, attribute, "name", "doc_string")
        is_constant = node is not None and node.op_type == "Constant" and not node.domain
        if proto.type == _A.SPARSE_TENSOR and is_constant:
            proto.name = "sparse_value"

    def tensor(
        self, proto: onnx.TensorProto, tensor: ir.TensorProtocol, *, is_attribute: bool
    ) -> None:
        if self.place(tensor, is_attribute, proto):
            _set(proto, tensor, "name", "doc_string")
            proto.data_type = tensor.dtype.value
            proto.dims.extend(tensor.shape.numpy())
            _add_entries(proto.metadata_props, tensor.metadata_props)
        else:
            ir.serde.serialize_tensor_into(proto, tensor)
            if len(proto.metadata_props) > 1:  # onnx-ir writes them twice where it copies a proto
                del proto.metadata_props[:]
                _add_entries(proto.metadata_props, tensor.metadata_props)

    def add_unknown(self, proto: Any, owner: Any) -> None:
        """Add the fields that this version of onnx does not know."""
        if self.has_unknown and (wire := owner.meta.get(UNKNOWN_KEY)):
            proto.MergeFromString(wire)


def _set(proto: Any, owner: Any, *fields: str) -> None:
    """Fill in texts; an empty one is the default."""
    for field in fields:
        if text := getattr(owner, field):
            setattr(proto, field, text)


def _add_entries(proto: Any, entries: Mapping[str, str]) -> None:
    for key in sorted(entries):
        proto.add(key=key, value=entries[key])


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _is_described(value: ir.Value) -> bool:
    """Whether there is something to say of a value but its name."""
    return bool(
        value.name
        and (
            value.type is not None
            or entries_of(value)
            or value.doc_string
            or noted(value, TYPE_KEY) is not None
        )
    )


def _is_plain(value: ir.Value, tensor: ir.TensorProtocol | None) -> bool:
    """Whether nothing is known of an initializer's value but what its tensor says.

    The file may say it once more; that stays as it is.
    """
    return (
        tensor is not None
        and not noted(value, VALUE_INFO_KEY)
        and not entries_of(value)
        and not value.doc_string
        and (value.type is None or value.type == ir.TensorType(tensor.dtype))
        and (value.shape is None or tuple(value.shape) == tuple(tensor.shape))
    )
