"""Parse a serialized message into a tree of fields, and encode the tree, even incorrectly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx

MODEL = onnx.ModelProto.DESCRIPTOR


def varint(value: int, padding: int = 0) -> bytes:
    """Encode the lowest 64 bits of a number as a base-128 varint.

    The varint ends with ``padding`` redundant bytes.
    """
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


@dataclass
class Field:
    """A field with its number, wire type and value. The value of a message is a list of fields."""

    number: int
    wire_type: int
    value: int | bytes | list[Field]
    descriptor: Any = None
    """The descriptor of the field in onnx, or None if onnx does not define the field."""
    length: int | None = None
    """The length in the encoded field, or None for the actual length of the content."""
    padding: int = 0
    """Number of redundant bytes in the encoded value or length."""
    cut: int | None = None
    """Number of bytes to which the content is truncated, or None if it is not truncated."""

    @property
    def kind(self) -> str:
        """The full name of the field, such as ``NodeProto.input``.

        The kind is ``field NUMBER`` if onnx does not define the field.
        """
        known = self.descriptor
        return known.full_name.removeprefix("onnx.") if known else f"field {self.number}"

    @property
    def type(self) -> str:
        if isinstance(self.value, list):
            return "message"
        return "bytes" if isinstance(self.value, bytes) else "number"

    def __bytes__(self) -> bytes:
        tag = varint(self.number << 3 | self.wire_type)
        if isinstance(self.value, int):
            if self.wire_type in (5, 1):
                size = 4 if self.wire_type == 5 else 8
                return tag + (self.value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            return tag + varint(self.value, self.padding)
        content = self.value if isinstance(self.value, bytes) else join(self.value)
        if self.cut is not None:
            content = content[: self.cut]
        if self.wire_type != 2:
            return tag + content
        return (
            tag
            + varint(len(content) if self.length is None else self.length, self.padding)
            + content
        )


class Raw(Field):
    """Arbitrary bytes in place of a field."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(0, 2, raw)

    def __bytes__(self) -> bytes:
        assert isinstance(self.value, bytes)
        return self.value


def join(fields: list[Field]) -> bytes:
    return b"".join(map(bytes, fields))


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, pos


def split(data: bytes, message: Any = MODEL) -> list[Field]:
    fields: list[Field] = []
    pos = 0
    while pos < len(data):
        tag, pos = _read_varint(data, pos)
        number = tag >> 3
        wire_type = tag & 7
        known = message.fields_by_number.get(number) if message is not None else None
        value: int | bytes | list[Field]
        if wire_type == 0:
            value, pos = _read_varint(data, pos)
        elif wire_type == 2:
            length, pos = _read_varint(data, pos)
            value = data[pos : pos + length]
            pos += length
            if known is not None and known.message_type is not None:
                value = split(value, known.message_type)
        else:
            size = {5: 4, 1: 8}[wire_type]
            value = int.from_bytes(data[pos : pos + size], "little")
            pos += size
        fields.append(Field(number, wire_type, value, known))
    return fields


def walk(fields: list[Field]) -> Iterator[tuple[list[Field], int]]:
    """Yield, for every field of a tree, the list that contains the field and the index in it."""
    for index, field in enumerate(fields):
        yield fields, index
        if isinstance(field.value, list):
            yield from walk(field.value)
