"""Values at the border to onnxruntime, without copies."""

from __future__ import annotations

import ctypes
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

_NUMPY_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}
_ONNX_TYPES = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
_TEXT = "OSTU"
"""Kinds of arrays that hold strings."""

_PACKED = frozenset(("int4", "uint4", "int2", "uint2", "float4e2m1"))
"""Of these types a byte holds several elements; in an array, one."""
_PACKED_NUMPY = _PACKED | {"float4_e2m1fn"}


def ort_value(feed: Feed) -> onnxruntime.OrtValue:
    """A feed as onnxruntime's value, on the same memory if that is contiguous and the CPU's.

    Strings, and numbers of less than a byte, are copied.

    Raises:
        UsageError: It is neither an array that onnxruntime takes nor an ``OrtValue``.
    """
    import onnxruntime as ort

    if isinstance(feed, ort.OrtValue):
        return feed
    if not isinstance(feed, np.ndarray):
        raise UsageError(f"expected an array or an OrtValue, got {type(feed).__name__}")
    array = np.asarray(feed)
    if is_text(array):
        return _text_value(array)
    if array.dtype.name in _PACKED_NUMPY:
        return _packed_value(array)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    element_type = _ONNX_TYPES.get(array.dtype.name)
    if element_type is not None:
        words = native.view(f"u{array.itemsize}")
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, element_type)
    try:
        return ort.OrtValue.ortvalue_from_numpy(native)
    except RuntimeError:
        raise UsageError(f"onnxruntime takes no arrays of {array.dtype}") from None


def _text_value(array: Array) -> onnxruntime.OrtValue:
    """Strings as onnxruntime's value: it makes them of a model's, and of no array.

    Bytes are UTF-8, and other objects the strings that Python makes of them.
    """
    import onnx
    import onnxruntime as ort

    texts = [t if array.dtype.kind == "S" else str(t).encode() for t in array.ravel().tolist()]
    kind = onnx.TensorProto.STRING
    tensor = onnx.TensorProto(name="given", data_type=kind, dims=array.shape, string_data=texts)
    result = onnx.helper.make_tensor_value_info("made", kind, array.shape)
    node = onnx.helper.make_node("Identity", ["given"], ["made"])
    graph = onnx.helper.make_graph([node], "strings", [], [result], [tensor])
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=7)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    return session.run_with_ort_values(None, {})[0]


def _packed_value(array: Array) -> onnxruntime.OrtValue:
    """Numbers of less than a byte as onnxruntime's value: there, a byte holds several."""
    import onnx_ir as ir
    import onnxruntime as ort

    content = ir.tensor(np.ascontiguousarray(array)).tobytes()
    kind = ir.DataType.from_numpy(array.dtype).value
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, kind)
    ctypes.memmove(value.data_ptr(), content, len(content))
    return value


def numpy_name(dtype: str) -> str:
    """NumPy's name of an element type that ONNX calls ``dtype``."""
    return _NUMPY_NAMES.get(dtype, dtype)


def is_text(value: Feed) -> bool:
    """Whether a value holds strings."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in _TEXT
    return hasattr(value, "data_type") and value.data_type() == "tensor(string)"


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
    if name in _PACKED:
        return None
    if name == "string":
        strings: Array = value.numpy()
        return strings
    nbytes = value.tensor_size_in_bytes()
    shape = tuple(value.shape())
    try:
        dtype = np.dtype(numpy_name(name))
    except TypeError:
        dtype = np.dtype("u2" if name == "bfloat16" else "u1")
    if nbytes == 0:
        return np.empty(shape, dtype)
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


def bits_of(value: onnxruntime.OrtValue) -> tuple[str, list[int], int, int]:
    """Type, shape, address and number of bytes: what tells one tensor of numbers from another.

    Raises:
        UsageError: It is not in the CPU's memory.
    """
    if value.device_name().lower() != "cpu":
        raise UsageError("a runtime constant must be in the CPU's memory")
    return value.data_type(), value.shape(), value.data_ptr(), value.tensor_size_in_bytes()
