"""Tensors in safetensors files: used where the files are mapped, which their library copies.

The format: the length of a header, 8 bytes; the header, JSON; and the elements of all tensors, one
tensor after the other. onnxruntime allocates at multiples of 64 bytes, and adds up sums in another
order elsewhere, so files that are written here have tensors of bytes between the others.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onnxfold.errors import ModelError
from onnxfold.onnxruntime_sessions import Array, numpy_name, ort_value

if TYPE_CHECKING:
    import onnxruntime

ALIGNMENT = 64
_LENGTH = 8
_LONGEST_HEADER = 100_000_000  # bytes; so says the format
_METADATA = "__metadata__"
_PADDING = "__padding_"
_DIGEST = "sha256"

_TYPES = {
    "BOOL": "bool",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    **{f"{k}{n}": f"{'u' if k == 'U' else ''}int{n}" for k in "IU" for n in (8, 16, 32, 64)},
}
"""Element types as the format calls them, and as NumPy and ml_dtypes do."""


class Tensors(NamedTuple):
    """What a file holds.

    Attributes:
        arrays: Views of its bytes, by name.
        metadata: Texts that go with them.
        entries: Its header without these.
        data: The elements of all, one after the other.
    """

    arrays: dict[str, Array]
    metadata: dict[str, str]
    entries: dict[str, Any]
    data: Array


def read(content: Array, file: str | os.PathLike[str]) -> Tensors:
    """What is in the bytes of a file.

    Args:
        content: They, mapped.
        file: Its name, for errors.

    Raises:
        ModelError: A tensor is not where the header says, or of no type that is known.
    """
    length = int.from_bytes(content[:_LENGTH].tobytes(), "little")
    if content.size < _LENGTH or length > min(_LONGEST_HEADER, content.size - _LENGTH):
        raise ModelError("damaged: it is shorter than its header", file=file)
    data = content[_LENGTH + length :]
    try:
        entries: dict[str, Any] = json.loads(content[_LENGTH : _LENGTH + length].tobytes())
        metadata = dict(entries.pop(_METADATA, {}))
        arrays = {name: _array(entry, data) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"damaged header: {error}", file=file) from None
    return Tensors(arrays, metadata, entries, data)


def _array(entry: Mapping[str, Any], data: Array) -> Array:
    name = _TYPES.get(entry["dtype"])
    if name is None:
        raise ValueError(f"type {entry['dtype']!r} is not known")
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError("sizes and offsets must be numbers from 0 up")
    dtype = _dtype(name)
    if end > data.size or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"a tensor of {shape} is not in the bytes from {begin} to {end}")
    array: Array = data[begin:end].view(dtype).reshape(shape)
    return array


def _dtype(name: str) -> np.dtype[Any]:
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # noqa: F401  # NumPy knows these by it; a session needs it for them only
    return np.dtype(name)


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
        add(name, _type_of(value) or "", list(value.shape()), data)
        gap = -offset % ALIGNMENT
        if gap:
            add(f"{_PADDING}{len(parts)}__", "U8", [gap], memoryview(bytes(gap)))
    digest = _digest(entries, parts)
    text = json.dumps({_METADATA: {**metadata, _DIGEST: digest}, **entries}).encode()
    text += b" " * (-(_LENGTH + len(text)) % ALIGNMENT)
    header = len(text).to_bytes(_LENGTH, "little") + text
    return Layout(header, parts, len(header) + offset)


def _type_of(value: onnxruntime.OrtValue) -> str | None:
    """What the format calls a tensor's element type; None if it has no name for it."""
    name = numpy_name(str(value.data_type()).removeprefix("tensor(").removesuffix(")"))
    return next((own for own, other in _TYPES.items() if other == name), None)


def _bytes_of(value: onnxruntime.OrtValue) -> memoryview | None:
    """The elements of a tensor in the CPU's memory, of a type that safetensors has."""
    if not value.is_tensor() or _type_of(value) is None:
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
    """A file that `layout_of` has written, mapped.

    Args:
        fd: The open file; it may be closed afterwards.
        path: Its name, for errors.

    Attributes:
        values: Its tensors on the mapped bytes; they keep the mapping alive.
        nbytes: What they take.

    Raises:
        ModelError: It is no such file, or a part of one.
        OSError: It cannot be mapped.
    """

    def __init__(self, fd: int, path: str) -> None:
        size = os.fstat(fd).st_size
        content = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
        self._read = read(np.frombuffer(content, np.uint8), path)
        arrays = self._read.arrays.items()
        self.values = {name: ort_value(a) for name, a in arrays if not name.startswith(_PADDING)}
        self.nbytes = sum(value.tensor_size_in_bytes() for value in self.values.values())

    def is_as_written(self) -> bool:
        """Whether all of it is what was written; reads all of it."""
        found = _digest(self._read.entries, [self._read.data.data])
        return self._read.metadata.get(_DIGEST) == found
