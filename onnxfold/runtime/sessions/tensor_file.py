"""Tensors in a safetensors file: onnxruntime uses them where the file is mapped.

The format: the length of a header, 8 bytes; the header, JSON; and the elements of all tensors, one
tensor after the other. onnxruntime allocates at multiples of 64 bytes, and adds up sums in another
order elsewhere, so files that are written here have tensors of bytes between the others.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.errors import ModelError
from onnxfold.lost_pages import Mapping as MappedBytes

if TYPE_CHECKING:
    import onnxruntime

ALIGNMENT = 64
_LENGTH = 8
_LONGEST_HEADER = 100 << 20  # of the format
_METADATA = "__metadata__"
_PADDING = "__padding_"
_DIGEST = "sha256"

# safetensors' element types by ONNX's, and the words of them that NumPy has.
_TYPES = {
    "float": ("F32", "f4"),
    "double": ("F64", "f8"),
    "float16": ("F16", "f2"),
    "bfloat16": ("BF16", "u2"),
    "float8e4m3fn": ("F8_E4M3", "u1"),
    "float8e5m2": ("F8_E5M2", "u1"),
    "int64": ("I64", "i8"),
    "int32": ("I32", "i4"),
    "int16": ("I16", "i2"),
    "int8": ("I8", "i1"),
    "uint64": ("U64", "u8"),
    "uint32": ("U32", "u4"),
    "uint16": ("U16", "u2"),
    "uint8": ("U8", "u1"),
    "bool": ("BOOL", "?"),
}
_WORDS = dict(_TYPES.values())
_WITHOUT_NUMPY = {"BF16": 16, "F8_E4M3": 17, "F8_E5M2": 19}
"""Numbers that ONNX has for types of which NumPy has words only."""


@dataclass(frozen=True)
class Layout:
    """A file that is to be written.

    Attributes:
        header: Its beginning.
        parts: The elements behind it, one after the other.
        nbytes: Its size.
    """

    header: bytes
    parts: list[memoryview]
    nbytes: int

    def write(self, fd: int) -> None:
        """Write it.

        Raises:
            OSError: There is no room.
        """
        with open(fd, "wb", closefd=False) as file:
            file.write(self.header)
            for part in self.parts:
                file.write(part)


def layout_of(
    values: Mapping[str, onnxruntime.OrtValue], metadata: Mapping[str, str]
) -> Layout | None:
    """A file for tensors; None if one has a type or a name that the format does not know.

    Args:
        values: The tensors, which must stay alive until it is written.
        metadata: Texts to go with them.
    """
    entries: dict[str, Any] = {}
    parts: list[memoryview] = []
    offset = 0

    def add(name: str, dtype: str, shape: list[int], data: memoryview) -> None:
        nonlocal offset
        place = [offset, offset + data.nbytes]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": place}
        parts.append(data)
        offset += data.nbytes

    for name, value in values.items():
        data = _bytes_of(value)
        if data is None or name == _METADATA or name.startswith(_PADDING):
            return None
        add(name, _TYPES[_element_type(value)][0], list(value.shape()), data)
        gap = -offset % ALIGNMENT
        if gap:
            add(f"{_PADDING}{len(parts)}__", "U8", [gap], memoryview(bytes(gap)))
    digest = _digest(entries, parts)
    text = json.dumps({_METADATA: {**metadata, _DIGEST: digest}, **entries}).encode()
    text += b" " * (-(_LENGTH + len(text)) % ALIGNMENT)
    header = len(text).to_bytes(_LENGTH, "little") + text
    return Layout(header, parts, len(header) + offset)


def _element_type(value: onnxruntime.OrtValue) -> str:
    return str(value.data_type()).removeprefix("tensor(").removesuffix(")")


def _bytes_of(value: onnxruntime.OrtValue) -> memoryview | None:
    """The elements of a tensor in the CPU's memory, of a type that safetensors has."""
    if not value.is_tensor() or _element_type(value) not in _TYPES:
        return None
    if value.device_name().lower() != "cpu":
        return None
    nbytes = value.tensor_size_in_bytes()
    if not nbytes:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * nbytes).from_address(value.data_ptr())).cast("B")


def _digest(entries: Mapping[str, Any], parts: list[memoryview]) -> str:
    """SHA-256 of tensors: their names, types, shapes, places and elements."""
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class TensorFile:
    """A safetensors file, mapped.

    Args:
        fd: The open file; it may be closed afterwards.
        path: Its name, for errors.

    Attributes:
        values: Its tensors on the mapped bytes; they keep the mapping alive.
        metadata: The texts that go with them.
        nbytes: What the tensors take.

    Raises:
        ModelError: It is no such file, or a part of one.
        OSError: It cannot be read.
    """

    def __init__(self, fd: int, path: str) -> None:
        size = os.fstat(fd).st_size
        try:
            header = _header(fd, size)
            self.metadata: dict[str, str] = header.pop(_METADATA, {})
            self._entries = header
            begin = size - max((e["data_offsets"][1] for e in header.values()), default=0)
            self._bytes = MappedBytes(fd, size, path=path).array()[begin:]
            self.values = dict(self._read())
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            raise ModelError("not a safetensors file, or not all of one", file=path) from None
        self.nbytes = sum(value.tensor_size_in_bytes() for value in self.values.values())

    def is_as_written(self) -> bool:
        """Whether what `layout_of` has written is still all there; reads all of it."""
        return self.metadata.get(_DIGEST) == _digest(self._entries, [self._bytes.data])

    def _read(self) -> Iterator[tuple[str, onnxruntime.OrtValue]]:
        import onnxruntime as ort

        for name, entry in self._entries.items():
            if name.startswith(_PADDING):
                continue
            begin, end = entry["data_offsets"]
            words = np.dtype(_WORDS[entry["dtype"]])
            if not 0 <= begin <= end or math.prod(entry["shape"]) * words.itemsize != end - begin:
                raise ValueError("its size is not that of its shape")
            array = self._bytes[begin:end].view(words).reshape(entry["shape"])
            number = _WITHOUT_NUMPY.get(entry["dtype"])
            if number is None:
                yield name, ort.OrtValue.ortvalue_from_numpy(array)
            else:
                yield name, ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)


def _header(fd: int, size: int) -> dict[str, Any]:
    """What a file begins with: its tensors, and the texts that go with them."""
    length = int.from_bytes(os.pread(fd, _LENGTH, 0), "little")
    if not 0 < length <= min(size - _LENGTH, _LONGEST_HEADER):
        raise ValueError("it is too short")
    header: dict[str, Any] = dict(json.loads(os.pread(fd, length, _LENGTH)))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != _METADATA]
    if max(ends, default=0) != size - _LENGTH - length:
        raise ValueError("its end is missing")
    return header
