import contextlib

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper
from onnx.numpy_helper import from_array

from .builder import Builder
from .scopes import Refused, Value
from .values import FLOATS, INTS, PACKED, Array, dtype_of


def write(b: Builder, array: Array, elem: int) -> Value:
    """Add a constant as an initializer, a Constant node, or the result of ops."""
    array = np.asarray(array)
    ways = [_initializer] * 5 + [_typed] * 2 + [_node] * 3 + [_attribute] * 2
    if b.scope.kind == "function":
        ways = [_node] * 3 + [_attribute]
    if elem not in PACKED:
        ways += [_computed, _computed]
    if b.scope.kind == "main":
        ways += [_overridable]
    for _ in range(4):
        try:
            return b.choose(ways)(b, array, elem)
        except Refused:
            continue
    return _node(b, array, elem)


def _initializer(b: Builder, array: Array, elem: int) -> Value:
    return b.initializer(from_array(array, b.name("w")), array)


def _overridable(b: Builder, array: Array, elem: int) -> Value:
    if b.constant_share == 1.0 or b.chance(0.7) or array.ndim == 0 or elem in INTS:
        raise Refused("other values may be invalid")
    value = _initializer(b, array, elem)
    b.override(value)
    return value


def typed(array: Array, elem: int, name: str) -> onnx.TensorProto:
    """Return a tensor that stores its elements in a field such as ``float_data``, not as bytes.

    Raises:
        Refused: The element type is packed.
    """
    if elem == T.STRING:
        return from_array(array, name)
    if elem in PACKED:
        raise Refused("packed")
    dtype = dtype_of(elem)
    if dtype.kind not in "iubc" and dtype.itemsize < 4:  # the field contains the bits of the floats
        flat = np.ascontiguousarray(array).reshape(-1).view(f"u{dtype.itemsize}")
        return onnx.TensorProto(name=name, data_type=elem, dims=array.shape, int32_data=flat)
    return helper.make_tensor(name, elem, array.shape, array.reshape(-1).tolist())


def _typed(b: Builder, array: Array, elem: int) -> Value:
    return b.initializer(typed(array, elem, b.name("w")), array)


def _node(b: Builder, array: Array, elem: int) -> Value:
    tensor = from_array(array, b.choose(["", "c0", "value"]))
    if b.chance(0.3):
        with contextlib.suppress(Refused):
            tensor = typed(array, elem, tensor.name)
    return b.node("Constant", [], value=tensor)[0]


def _attribute(b: Builder, array: Array, elem: int) -> Value:
    """Add a Constant with an attribute such as ``value_int`` or ``value_ints``."""
    if b.opset < 12 or array.ndim > 1:
        raise Refused("no such attribute")
    key = {T.INT64: "value_int", T.FLOAT: "value_float", T.STRING: "value_string"}.get(elem)
    if key is None:
        raise Refused("no such attribute")
    if array.ndim == 1:
        if not array.size:
            raise Refused("an empty attribute has no type")
        return b.node("Constant", [], **{f"{key}s": array.tolist()})[0]
    return b.node("Constant", [], **{key: array.item()})[0]


def _computed(b: Builder, array: Array, elem: int) -> Value:
    """Compute the constant from other constants by an op that yields the same elements."""
    ways = [_by_identity, _by_reshape, _by_fill, _by_concat, _by_cast, _by_range, _by_transpose]
    result = b.choose(ways)(b, array, elem)
    if result.first.dtype != array.dtype or result.shape != array.shape:
        raise Refused("another constant")
    return result


def _plain(b: Builder, array: Array, elem: int) -> Value:
    if b.scope.kind == "function" or b.chance(0.3):
        return _node(b, array, elem)
    return _initializer(b, array, elem)


def _by_identity(b: Builder, array: Array, elem: int) -> Value:
    return b.node("Identity", [_plain(b, array, elem)])[0]


def _by_reshape(b: Builder, array: Array, elem: int) -> Value:
    shape = _plain(b, np.array(array.shape, np.int64), T.INT64)
    return b.node("Reshape", [_plain(b, array.reshape(-1), elem), shape])[0]


def _by_fill(b: Builder, array: Array, elem: int) -> Value:
    flat = array.reshape(-1)
    if elem == T.STRING or not flat.size or flat.tobytes() != flat[:1].tobytes() * flat.size:
        raise Refused("not one element")
    shape = _plain(b, np.array(array.shape, np.int64), T.INT64)
    if b.chance(0.5):
        return b.node("Expand", [_plain(b, flat[:1].reshape(()), elem), shape])[0]
    return b.node("ConstantOfShape", [shape], value=from_array(flat[:1], "value"))[0]


def _by_concat(b: Builder, array: Array, elem: int) -> Value:
    if array.ndim == 0 or array.shape[0] < 2:
        raise Refused("nothing to split")
    cut = b.number(1, array.shape[0] - 1)
    parts = [_plain(b, array[:cut], elem), _plain(b, array[cut:], elem)]
    return b.node("Concat", parts, axis=0)[0]


def _by_cast(b: Builder, array: Array, elem: int) -> Value:
    via = b.choose([T.INT64, T.DOUBLE, T.FLOAT, T.INT32])
    if elem not in (*FLOATS, *INTS) or elem == via:
        raise Refused("no cast")
    with np.errstate(all="ignore"):
        wide = array.astype(dtype_of(via))
        back = wide.astype(array.dtype)
    if back.tobytes() != np.ascontiguousarray(array).tobytes():
        raise Refused("the cast is not exact")
    return b.node("Cast", [_plain(b, wide, via)], to=elem)[0]


def _by_range(b: Builder, array: Array, elem: int) -> Value:
    if array.ndim != 1 or array.size < 2 or elem not in (T.INT64, T.INT32):
        raise Refused("no range")
    steps = {int(d) for d in np.diff(array.astype(object))}
    if len(steps) != 1 or not (step := steps.pop()) or abs(step) > 2**30:
        raise Refused("no range")
    ends = [array[0], int(array[-1]) + step, step]
    dtype = array.dtype
    return b.node("Range", [_plain(b, np.array(e, dtype), elem) for e in ends])[0]


def _by_transpose(b: Builder, array: Array, elem: int) -> Value:
    perm = [int(p) for p in b.rng.permutation(array.ndim)]
    back = [int(p) for p in np.argsort(perm)]
    return b.node("Transpose", [_plain(b, array.transpose(back), elem)], perm=perm or None)[0]
