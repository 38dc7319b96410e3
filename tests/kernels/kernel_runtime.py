"""Run one node on onnxruntime's CPU provider, unoptimized, with inputs of any ONNX dtype."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import onnxruntime
from reference_session import reference_session

STRING = onnx.TensorProto.STRING
SUB_BYTE = {
    np.dtype(ml_dtypes.int4): 4,
    np.dtype(ml_dtypes.uint4): 4,
    np.dtype(ml_dtypes.float4_e2m1fn): 4,
    np.dtype(ml_dtypes.int2): 2,
    np.dtype(ml_dtypes.uint2): 2,
}


def onnx_type(array: np.ndarray) -> int:
    if array.dtype == object or array.dtype.kind in "US":
        return STRING
    return int(onnx_ir.DataType.from_numpy(array.dtype))


def _freeze(attributes: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    protos = []
    for name, value in attributes.items():
        if isinstance(value, np.ndarray):
            value = onnx.numpy_helper.from_array(value)
        protos.append((name, onnx.helper.make_attribute(name, value).SerializeToString()))
    return tuple(protos)


@functools.lru_cache(maxsize=4096)
def session(
    op_type: str,
    types: tuple[int | None, ...],
    attributes: tuple[tuple[str, bytes], ...],
    opset: int,
    n_outputs: int,
) -> onnxruntime.InferenceSession:
    names = ["" if t is None else f"i{k}" for k, t in enumerate(types)]
    outputs = [f"o{k}" for k in range(n_outputs)]
    node = onnx.helper.make_node(op_type, names, outputs)
    for _, proto in attributes:
        node.attribute.append(onnx.AttributeProto.FromString(proto))
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info(f"i{k}", t, None) for k, t in enumerate(types) if t],
        [onnx.ValueInfoProto(name=o) for o in outputs],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )
    return reference_session(model)


def _to_ort(array: np.ndarray, elem_type: int) -> onnxruntime.OrtValue:
    if elem_type == STRING:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, dtype=object))
    array = np.ascontiguousarray(array).reshape(array.shape)
    bits = SUB_BYTE.get(array.dtype)
    if bits is not None:
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, elem_type)
        packed = pack(array, bits)
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
        return value
    if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8")):
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, elem_type)
        ctypes.memmove(value.data_ptr(), array.ctypes.data, array.nbytes)
        return value
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def pack(array: np.ndarray, bits: int) -> np.ndarray:
    per_byte = 8 // bits
    flat = array.view(np.uint8).ravel() & ((1 << bits) - 1)
    flat = np.concatenate([flat, np.zeros(-flat.size % per_byte, np.uint8)])
    out = np.zeros(flat.size // per_byte, np.uint8)
    for k in range(per_byte):
        out |= flat[k::per_byte] << np.uint8(bits * k)
    return out


def unpack(data: np.ndarray, bits: int, size: int, dtype: np.dtype) -> np.ndarray:
    per_byte = 8 // bits
    out = np.empty(data.size * per_byte, np.uint8)
    for k in range(per_byte):
        out[k::per_byte] = (data >> np.uint8(bits * k)) & np.uint8((1 << bits) - 1)
    out = out[:size]
    if dtype.name.startswith("int"):  # ml_dtypes keeps signed values sign-extended
        sign = 1 << (bits - 1)
        return ((out ^ sign).astype(np.int16) - sign).astype(np.int8).view(dtype)
    return out.view(dtype)


def _from_ort(value: onnxruntime.OrtValue) -> np.ndarray:
    elem_type = value.element_type()
    if elem_type == STRING:
        return value.numpy()
    dtype = onnx_ir.DataType(elem_type).numpy()
    shape = tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64))
    bits = SUB_BYTE.get(dtype)
    count = size * dtype.itemsize if bits is None else -(-size * bits // 8)
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), count) if count else b"", np.uint8)
    if bits is not None:
        return unpack(raw, bits, size, dtype).reshape(shape)
    return raw.view(dtype).reshape(shape).copy()


def run(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = 23,
    n_outputs: int = 1,
) -> list[np.ndarray]:
    """The node's outputs. Raises onnxruntime's exception where it refuses."""
    types = tuple(None if x is None else onnx_type(x) for x in inputs)
    sess = session(op_type, types, _freeze(attributes or {}), opset, n_outputs)
    names = [f"o{k}" for k in range(n_outputs)]
    if STRING in types or (attributes or {}).get("to") == STRING:
        plain = {f"i{k}": np.asarray(x) for k, x in enumerate(inputs) if x is not None}
        return [np.asarray(y) for y in sess.run(names, plain)]
    feeds = {
        f"i{k}": _to_ort(x, t)
        for k, (x, t) in enumerate(zip(inputs, types, strict=True))
        if x is not None and t is not None
    }
    values = sess.run_with_ort_values(names, feeds)
    return [_from_ort(v) for v in values]
