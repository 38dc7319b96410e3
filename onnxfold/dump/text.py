"""A model as ONNX text, large tensors left out."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxfold import storage
from onnxfold.onnx_ir_private import is_a
from onnxfold.pool import BufferTensor
from onnxfold.storage.encode import to_proto

# Elements of tensors up to this many bytes are written.
_SMALL = 128


def text_of(model: ir.Model) -> str:
    """The model as onnx prints it. Of larger tensors there are type, shape and bytes only.

    No large tensor is read, and nothing is computed that is postponed.

    Raises:
        ModelError: The model cannot be expressed.
    """
    proto = to_proto(model, _leave_out)
    for graph in (proto.graph, *proto.functions):
        _make_printable(graph.node)
    text: str = onnx.printer.to_text(proto)
    return text


def _leave_out(tensor: ir.TensorProtocol, is_attribute: bool, proto: onnx.TensorProto) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False  # it is in memory, and has no bytes of its own
    nbytes = storage.data_bytes(tensor.dtype, tensor.shape)
    is_known = not is_a(tensor, BufferTensor) or tensor.buffer.is_known
    if nbytes <= _SMALL and is_known:
        return False
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.external_data.add(key="left_out", value=f"{nbytes} bytes")
    return True


def _make_printable(nodes: Iterable[onnx.NodeProto]) -> None:
    """Texts in attributes may be any bytes; onnx prints those that are UTF-8."""
    for node in nodes:
        for attribute in node.attribute:
            attribute.s = _readable(attribute.s)
            for k, text in enumerate(attribute.strings):
                attribute.strings[k] = _readable(text)
            for tensor in (attribute.t, *attribute.tensors):
                for k, text in enumerate(tensor.string_data):
                    tensor.string_data[k] = _readable(text)
            for graph in (attribute.g, *attribute.graphs):
                _make_printable(graph.node)


def _readable(text: bytes) -> bytes:
    return text.decode("utf-8", "backslashreplace").encode()
