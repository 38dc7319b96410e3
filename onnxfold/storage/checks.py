"""Whether the sizes of tensors add up.

All that is taken for granted of a model afterwards is seen to once, here and where `decode`
resolves names: what raises an exception of another kind later is a bug. Cheaper and more lenient
than ``onnx.checker``: a model that onnxruntime loads passes. Every failure is a `ModelError` with
the node.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from onnxfold.errors import ExternalDataError, ModelError
from onnxfold.storage.size import data_bytes

# NumPy has no larger arrays of elements of 16 bytes, even where another dimension is 0.
_MAX_ELEMENTS = 1 << 58
# NumPy takes no more dimensions.
_MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
_T = onnx.TensorProto
DTYPES: dict[int, ir.DataType] = {dtype.value: dtype for dtype in ir.DataType}


def check_tensor(tensor: onnx.TensorProto, length: int | None, owner: Any) -> None:
    """Check that the data of a tensor match its type and shape.

    Args:
        tensor: The tensor.
        length: Bytes of its data, if they are not in it.
        owner: The initializer itself, or the node or function that has it as an attribute.

    Raises:
        ModelError: They do not.
    """
    if tensor.data_type == _T.UNDEFINED:
        if owner is not tensor and not tensor.dims:
            return  # an attribute left empty, as custom operators do
        raise ModelError("tensor without a data type", node=label(owner))
    expected = check_size(tensor.dims, tensor.data_type, owner)
    shape, dtype = tensor.dims, DTYPES[tensor.data_type]
    if tensor.data_location == _T.EXTERNAL:
        if dtype == ir.DataType.STRING:
            raise ModelError("string tensor with external data", node=label(owner))
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not _is_size(entry.value):
                reason = (
                    f"external data {entry.key} {entry.value[:40]!r} is not a non-negative number"
                )
                raise ExternalDataError(reason, node=label(owner))
        return
    if tensor.HasField("raw_data"):
        if dtype == ir.DataType.STRING:
            raise ModelError("string tensor with raw data", node=label(owner))
        unit, there = "bytes", len(tensor.raw_data) if length is None else length
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        unit, there = f"entries in {field}", len(getattr(tensor, field))
        elements = math.prod(shape)
        if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
            expected = 2 * elements  # a real and an imaginary part each
        elif field == "string_data" or data_bytes(dtype, (8,)) >= 6:
            expected = elements  # smaller ones are packed into bytes
    if there != expected:
        reason = (
            f"tensor of type {dtype} and shape {list(shape)} takes {expected} {unit}, has {there}"
        )
        raise ModelError(reason, node=label(owner))


def check_size(dims: Sequence[int], data_type: int, owner: Any) -> int:
    """Return the bytes of a tensor.

    Raises:
        ModelError: The type is unknown, or the shape is none.
    """
    dtype = DTYPES.get(data_type)
    if dtype is None:
        raise ModelError(f"tensor of unknown data type {data_type}", node=label(owner))
    reason = ""
    if len(dims) > _MAX_RANK:
        reason = f"tensor of {len(dims)} dimensions, {_MAX_RANK} are possible"
    elif dims and min(dims) < 0:
        reason = f"tensor has a negative dimension: {list(dims)}"
    # NumPy counts so: it has no array of shape [0, 2**60, 2**60]
    elif math.prod(filter(None, dims)) > _MAX_ELEMENTS:
        reason = f"tensor of shape {list(dims)} is larger than any memory"
    if reason:
        raise ModelError(reason, node=label(owner))
    return data_bytes(dtype, dims)


@functools.cache
def _strict_model() -> type[Message]:
    """A ``ModelProto`` declared in proto3, whose parser asks for UTF-8."""
    file = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(file)
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name)
    made: type[Message] = message_factory.GetMessageClass(found)
    return made


def check_texts(message: Any, serialized: bytes | None = None) -> None:
    """Check that strings are UTF-8: protobuf hands out bytes where they are not.

    Args:
        message: The model, or a message in it.
        serialized: What the model was parsed from.

    Raises:
        ModelError: One is not.
    """
    if serialized is not None:
        try:
            _strict_model().FromString(serialized)
            return
        except DecodeError:
            pass
    for field, content in message.ListFields():
        for part in content if field.is_repeated else (content,):
            if isinstance(part, Message):
                check_texts(part)
            elif field.type == field.TYPE_STRING and isinstance(part, bytes):
                owner = field.containing_type.name.removesuffix("Proto")
                raise ModelError(f"{field.name} {part!r} of a {owner} is not UTF-8 text")


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40


def label(owner: Any) -> str:
    """Return what to call a node in a message: its name, or its operator and first output.

    Tensors and functions are called by their name.
    """
    if owner.name or not isinstance(owner, onnx.NodeProto):
        return str(owner.name)
    return f"{owner.op_type} -> {owner.output[0]}" if owner.output else owner.op_type
