"""Keys of the content of attributes and small tensors, by their bits instead of ``==``."""

from __future__ import annotations

import operator
import struct
from collections.abc import Hashable, Iterable

import onnx_ir as ir

from onnxfold.fold.pool import BufferTensor
from onnxfold.ir.onnx_ir_private import is_a
from onnxfold.ir.storage import data_bytes, sizes_of

# Bytes up to which the elements themselves are the key.
_SMALL = 1024


def content_of_tensor(tensor: ir.TensorProtocol) -> Hashable | None:
    """Return a key of dtype, shape and bytes; None for a large tensor or one without a dtype."""
    dtype = tensor.dtype
    shape = sizes_of(tensor)
    if dtype == ir.DataType.UNDEFINED:
        return None  # an empty attribute, which custom operators have
    kind = (dtype, shape)
    if dtype == ir.DataType.STRING:
        return (*kind, *tensor.numpy().reshape(-1).tolist())
    if is_a(tensor, BufferTensor) and not tensor.buffer.is_known:
        return (*kind, id(tensor.buffer))  # computed when written: equal only to itself
    if data_bytes(dtype, shape) <= _SMALL:
        return (*kind, tensor.tobytes())
    return None


def content_of_node(node: ir.Node, operands: Iterable[Hashable]) -> Hashable | None:
    """Return a key of what a deterministic node computes of keys of its inputs, or None."""
    attributes = content_of_attributes(node.attributes.data.values())
    # the results of a kernel may depend on which outputs are used
    outputs = tuple(bool(value.name) for value in node.outputs)
    key = (node.op_identifier(), tuple(operands), outputs, attributes)
    return None if attributes is None else key


def content_of_attributes(attributes: Iterable[ir.Attr]) -> Hashable | None:
    """Return a key of names, types and bits; None for graphs, types, sparse and large tensors."""
    contents = []
    for attribute in attributes:
        kind = attribute.type
        value = attribute.value
        content: Hashable | None
        if value is None:
            content = (attribute.ref_attr_name,)
        elif kind in _PLAIN:
            content = value
        elif kind in _LISTS:
            content = tuple(value)
        elif kind is ir.AttributeType.FLOAT:
            content = struct.pack("<d", value)
        elif kind is ir.AttributeType.FLOATS:
            content = struct.pack(f"<{len(value)}d", *value)
        else:
            content = content_of_tensor(value) if kind is ir.AttributeType.TENSOR else None
        if content is None:
            return None
        contents.append((attribute.name, kind, content))
    if len(contents) > 1:
        contents.sort(key=_name)
    return tuple(contents)


_PLAIN = frozenset((ir.AttributeType.INT, ir.AttributeType.STRING))
_LISTS = frozenset((ir.AttributeType.INTS, ir.AttributeType.STRINGS))
_name = operator.itemgetter(0)
