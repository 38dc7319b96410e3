"""Texts that are not UTF-8, as the format asks: comments are repaired, names are refused.

Protobuf does not look at them, and hands out bytes where a text should be.
"""

from __future__ import annotations

import functools
from typing import Any

import onnx
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from onnxfold.errors import ModelError

_COMMENTS = frozenset(
    f"onnx.{name}"
    for name in (
        "ModelProto.producer_name",
        "ModelProto.producer_version",
        "GraphProto.name",
        "StringStringEntryProto.value",
    )
)


@functools.cache
def _strict_model() -> type[Message]:
    """A ``ModelProto`` whose parser asks for UTF-8: the same declaration as proto3."""
    file = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(file)
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name)
    made: type[Message] = message_factory.GetMessageClass(found)
    return made


def mend_texts(proto: onnx.ModelProto, serialized: bytes) -> None:
    """See that all texts are UTF-8; comments are made so.

    Args:
        proto: The model.
        serialized: What it was parsed from.

    Raises:
        ModelError: A name is not UTF-8.
    """
    try:
        _strict_model().FromString(serialized)
    except DecodeError:
        _mend(proto)


def _mend(message: Any) -> None:
    for field, content in message.ListFields():
        several = isinstance(content, (list, tuple)) or hasattr(content, "append")
        for part in content if several else (content,):
            if isinstance(part, Message):
                _mend(part)
            elif field.type == field.TYPE_STRING and isinstance(part, bytes):
                if several or not _is_comment(field):
                    owner = field.containing_type.name.removesuffix("Proto")
                    raise ModelError(f"{field.name} {part!r} of a {owner} is not UTF-8 text")
                setattr(message, field.name, part.decode(errors="replace"))


def _is_comment(field: Any) -> bool:
    """Whether nobody acts on the text; some exporters write it in the encoding of the machine."""
    return field.name == "doc_string" or field.full_name in _COMMENTS
