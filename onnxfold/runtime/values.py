"""Values at the border to onnxruntime, without copies; and what tells one from another."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnxfold.errors import UsageError

if TYPE_CHECKING:
    import onnxruntime

Array = npt.NDArray[Any]
Feed = Any
"""A NumPy array (ml_dtypes' types included), an ``onnxruntime.OrtValue``, or a sequence."""

_SAMPLES = 32

_NUMPY_NAMES = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn"}
_ONNX_TYPES = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}


def ort_value(feed: Feed) -> onnxruntime.OrtValue:
    """A feed as onnxruntime's value on the same memory (contiguous arrays of the CPU).

    Raises:
        UsageError: It is no tensor.
    """
    import onnxruntime as ort

    if isinstance(feed, ort.OrtValue):
        return feed
    array = np.asarray(feed)
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    element_type = _ONNX_TYPES.get(array.dtype.name)
    if element_type is None:
        raise UsageError(f"onnxruntime takes no arrays of {array.dtype}")
    words = np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(array.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, element_type)


def array_of(value: Feed) -> Array | None:
    """A feed's elements as an array on the same memory; None where that is not possible.

    onnxruntime's own types without a NumPy counterpart come as unsigned words.
    """
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if not hasattr(value, "data_ptr"):
        return None
    if not value.is_tensor() or value.device_name().lower() != "cpu":
        return None
    name = value.data_type()[len("tensor(") : -1]
    if name == "string":
        strings: Array = value.numpy()
        return strings
    nbytes = value.tensor_size_in_bytes()
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if nbytes == 0 or count == 0:
        return np.empty(shape, np.uint8)
    try:
        dtype = np.dtype(_NUMPY_NAMES.get(name, name))
    except TypeError:
        if nbytes % count:
            return None
        dtype = np.dtype(f"u{nbytes // count}")
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(value.data_ptr())
    memory.owner = value  # the array's base keeps onnxruntime's tensor alive
    raw: Array = np.frombuffer(memory, np.uint8).view(dtype)
    return raw.reshape(shape)


def arrays_of(values: Mapping[str, Feed], names: Sequence[str]) -> list[Array]:
    """The feeds of these names as arrays on the same memory.

    Raises:
        ValueError: One of them is elsewhere.
    """
    arrays = []
    for name in names:
        array = array_of(values[name])
        if array is None:
            raise ValueError(f"{name!r} is not in the CPU's memory")
        arrays.append(array)
    return arrays


def widened(array: Array) -> Array:
    """Integers of 4 and 2 bits as bytes, other arrays as they are."""
    name = array.dtype.name
    if name in ("int4", "int2"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if name in ("uint4", "uint2") else array


def size_in_bytes(value: onnxruntime.OrtValue) -> int:
    """Bytes of a tensor; 0 for what is none."""
    try:
        return int(value.tensor_size_in_bytes())
    except Exception:  # strings and sequences have no size that onnxruntime tells
        return 0


def digest_of(value: Feed) -> bytes:
    """What two values have in common only if they have the same dtype, shape and elements.

    Raises:
        UsageError: It is not a tensor in the CPU's memory.
    """
    array = array_of(value)
    if array is None:
        raise UsageError("a runtime constant must be a tensor in the CPU's memory")
    digest = hashlib.sha256(f"{array.dtype.str}{array.dtype.name}{array.shape}".encode())
    if array.dtype.hasobject or array.dtype.kind in "US":
        for item in array.reshape(-1).tolist():
            text = item if isinstance(item, bytes) else str(item).encode()
            digest.update(len(text).to_bytes(8, "little") + text)
    elif array.size:
        raw: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest.update(raw)
    return digest.digest()


class Seen:
    """A value that was given, and a sample of its elements.

    A caller that fills one array with new values again and again is noticed by the sample: 32
    elements at equal distances. It costs about a microsecond.
    """

    __slots__ = ("_flat", "_sample", "value")

    def __init__(self, value: Feed) -> None:
        self.value = value
        array = array_of(value)
        self._flat: Array | None = None
        self._sample = b""
        if array is None or array.dtype.hasobject or not array.size:
            return
        if array.flags.c_contiguous:
            flat = array.reshape(-1)
            self._flat = flat[:: max(1, flat.size // _SAMPLES)]
            self._sample = self._flat.tobytes()

    def is_same(self, value: Feed) -> bool:
        """Whether it is the very same object, and its sample has not changed."""
        if value is not self.value:
            return False
        return self._flat is not None and self._flat.tobytes() == self._sample
