"""Hashable keys of tensors, attributes and nodes.

Keys are equal only if all bits are equal, so they distinguish 0.0 from -0.0, unlike ``==``.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Hashable, Iterable

import onnx_ir as ir

from onnxfold.fold.pool import BufferTensor
from onnxfold.ir.onnx_ir_private import is_a
from onnxfold.ir.storage import data_bytes, sizes_of

# Numeric tensors of up to this many bytes have a key, which contains the bytes of the elements.
_SMALL = 1024


def content_of_tensor(tensor: ir.TensorProtocol) -> Hashable | None:
    """Return a key of the dtype, shape and elements of a tensor.

    The key of a deferred tensor contains its buffer instead of its elements. The result is None for
    a large tensor of another dtype than string, and for a tensor without a dtype.
    """
    dtype = tensor.dtype
    shape = sizes_of(tensor)
    if dtype == ir.DataType.UNDEFINED:
        return None  # tensors without a dtype occur in empty attributes of custom ops
    kind = (dtype, shape)
    if dtype == ir.DataType.STRING:
        return (*kind, *tensor.numpy().reshape(-1).tolist())
    if is_a(tensor, BufferTensor) and not tensor.buffer.is_known:
        return (*kind, id(tensor.buffer))  # the elements are not computed yet
    if data_bytes(dtype, shape) <= _SMALL:
        return (*kind, tensor.tobytes())
    return None


def content_of_node(node: ir.Node, operands: Iterable[Hashable]) -> Hashable | None:
    """Return a key of the results of a deterministic node from the keys of the node's operands.

    The result is None if an attribute has no key (`content_of_attributes`).
    """
    attributes = content_of_attributes(node.attributes.data.values())
    # a kernel may compute other results if some outputs are omitted
    outputs = tuple(bool(value.name) for value in node.outputs)
    key = (node.op_identifier(), tuple(operands), outputs, attributes)
    return None if attributes is None else key


def content_of_attributes(attributes: Iterable[ir.Attr]) -> Hashable | None:
    """Return a key of the names, types and bits of attributes in any order.

    The result is None if an attribute is a tensor without a key (`content_of_tensor`), a list of
    tensors, or contains graphs, types or sparse tensors.
    """
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
