"""Replacement of tensor bytes in a serialized ONNX model without parsing the other fields.

A protobuf message is a list of fields. Each field begins with its tag. In a length-delimited field,
the length of the value follows the tag. A field with a shorter value than the minimum length of a
``raw_data`` is skipped without parsing. Only the messages that may contain a tensor's ``raw_data``
are parsed. All other fields are copied unchanged.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import bisect
import mmap
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Buffer: TypeAlias = "mmap.mmap | bytes | memoryview"

# The fields in which `rewrite` searches for ``raw_data``. The index is the type of a message. Each
# dictionary maps the number of a field to the type of the message in the field.
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _FUNCTION, _TENSOR, _RAW = range(7)
_CHILDREN: tuple[dict[int, int], ...] = (
    {7: _GRAPH, 25: _FUNCTION},
    {1: _NODE, 5: _TENSOR},
    {5: _ATTRIBUTE},
    {5: _TENSOR, 6: _GRAPH},
    {7: _NODE, 11: _ATTRIBUTE},
    {9: _RAW},
    {},
)

# Protobuf's own parsers reject more than 100 nested messages.
_MAX_DEPTH = 100


class WireError(Exception):
    """Raised for an invalid protobuf message. The text is the reason, usually with a position."""


@dataclass
class Hole:
    """A gap of ``length`` bytes at ``offset`` of a file for the elements of a tensor."""

    tensor: Any
    length: int
    offset: int = 0


# A piece of the rewritten message: the start and end of a range of the input, new bytes, or a hole.
Piece: TypeAlias = "tuple[int, int] | bytes | Hole"


# Called with the offset and length of a ``raw_data`` in bytes. Returns the new content,
# or None to keep the old one.
Replace: TypeAlias = Callable[[int, int], "bytes | Hole | None"]


class Placeholders:
    """Placeholders that replace the bytes of tensors, and the objects that they represent.

    Each placeholder begins with a random token, so that no file contains it by accident.
    """

    def __init__(self) -> None:
        self.token = b"onnxfold:" + secrets.token_hex(12).encode() + b":"
        self.objects: list[Any] = []

    def add(self, obj: Any) -> bytes:
        """Return a new placeholder for ``obj``."""
        self.objects.append(obj)
        return self.token + str(len(self.objects) - 1).encode()

    def get(self, data: bytes) -> Any:
        """Return the object of a placeholder; None for other bytes."""
        if not data.startswith(self.token):
            return None
        return self.objects[int(data[len(self.token) :])]


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer as a base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Return the varint at ``pos``, modulo 2**64, and the position after it.

    Raises:
        WireError: The varint exceeds ``end`` or 10 bytes.
    """
    value = 0
    shift = 0
    start = pos
    while True:
        if pos >= end:
            raise WireError(f"truncated number at byte {start}")
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, pos
        shift += 7
        if shift >= 70:
            raise WireError(f"number of more than 10 bytes at byte {start}")


def rewrite(
    buf: Buffer,
    threshold: int,
    replace: Replace,
    *,
    marks: Sequence[int] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[Piece], int]:
    """Replace the ``raw_data`` of the tensors in a serialized ``ModelProto``.

    This covers graph initializers, tensor attributes, subgraphs at any depth, and functions. The
    lengths of the enclosing messages are corrected.

    Args:
        buf: The serialized model.
        threshold: Minimum length in bytes of a ``raw_data`` for which ``replace`` is called.
        replace: Returns the new content, or None to keep the old one.
        marks: Sorted positions. Only messages that contain one of them are parsed; None parses all.
        on_progress: Called repeatedly with a position. Bytes before this position are not read
            again.

    Returns:
        The pieces of the new message in order, and its length in bytes.

    Raises:
        WireError: The message is invalid.
    """
    size = len(buf)

    def message(pos: int, end: int, kind: int, depth: int) -> tuple[list[Piece], int] | None:
        """Rewrite the message in [pos, end). Return None if nothing in it changes."""
        if depth > _MAX_DEPTH:
            raise WireError(f"messages nested more than {_MAX_DEPTH} deep")
        children = _CHILDREN[kind]
        pieces: list[Piece] = []
        literal = pos
        start = pos
        growth = 0
        while pos < end:
            field = pos
            tag = buf[pos]
            pos += 1
            if tag >= 0x80:
                tag, pos = _varint(buf, field, end)
            wire_type = tag & 7
            if wire_type == 2:
                if pos >= end:
                    raise WireError(f"truncated field at byte {field}")
                length_pos = pos
                length = buf[pos]
                pos += 1
                if length >= 0x80:
                    length, pos = _varint(buf, length_pos, end)
                stop = pos + length
                if stop > end:
                    raise WireError(
                        f"field at byte {field} has {length} bytes, but only {end - pos} remain"
                    )
                if length >= threshold and (child := children.get(tag >> 3)) is not None:
                    if marks is not None:
                        index = bisect.bisect_left(marks, pos)
                        if index == len(marks) or marks[index] >= stop:
                            pos = stop
                            continue
                    inner: list[Piece] | None = None
                    new_length = length
                    if child == _RAW:
                        content = replace(pos, length)
                        if content is not None:
                            inner = [content]
                            new_length = (
                                content.length if isinstance(content, Hole) else len(content)
                            )
                    else:
                        changed = message(pos, stop, child, depth + 1)  # noqa: F821  # deleted below
                        if changed is not None:
                            inner, new_length = changed
                    if inner is not None:
                        pieces.append((literal, length_pos))
                        header = encode_varint(new_length)
                        pieces.append(header)
                        pieces.extend(inner)
                        literal = stop
                        growth += len(header) + new_length - (stop - length_pos)
                    if on_progress is not None:
                        on_progress(stop)
                pos = stop
            elif wire_type == 0:
                is_one_byte = pos < end and buf[pos] < 0x80
                pos = pos + 1 if is_one_byte else _varint(buf, pos, end)[1]
            elif wire_type == 5:
                pos += 4
            elif wire_type == 1:
                pos += 8
            else:  # wire types 3 and 4 are groups, which ONNX does not use
                raise WireError(f"unknown wire type {wire_type} at byte {field}")
            if tag < 8:
                raise WireError(f"field number 0 at byte {field}")
        if pos != end:
            raise WireError(f"truncated field before byte {end}")
        if not pieces:
            return None
        pieces.append((literal, end))
        return pieces, end - start + growth

    try:
        changed = message(0, size, _MODEL, 0)
    finally:
        del message  # a reference cycle that would keep the file mapped until a garbage collection
    return changed if changed is not None else ([(0, size)], size)


def join(
    buf: Buffer, pieces: Sequence[Piece], *, on_progress: Callable[[int], None] | None = None
) -> bytes:
    """Return the message that consists of ``pieces``, a result of `rewrite` without holes.

    ``on_progress`` is called with a position of ``buf``. Bytes before this position are not read
    again.
    """
    parts: list[Buffer] = []
    for piece in pieces:
        if isinstance(piece, tuple):
            part = buf[piece[0] : piece[1]]
            parts.append(part if on_progress is None else bytes(part))
            if on_progress is not None:
                on_progress(piece[1])
        else:
            assert isinstance(piece, bytes)
            parts.append(piece)
    return b"".join(parts)
