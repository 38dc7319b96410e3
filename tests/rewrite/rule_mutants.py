"""Models that differ from a given one in a dtype, a constant, an attribute, a shape or the opset,
or in two of these at once.

A rule need not match them, and onnxruntime need not take them; but where both do, the bits must
stay, and whatever they hold no rule may raise.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto

Change = Callable[[onnx.ModelProto], None]
"""Makes a copy of the model different, in place."""

_DTYPES = (
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64"),
    *("UINT8", "UINT16", "UINT32", "UINT64"),
)
_MOST_ELEMENTS = 64
_INT64 = np.iinfo(np.int64)
_WHOLE = (0, 1, -1, 2, 2**31 - 1, 2**53 + 1, _INT64.max, _INT64.min, _INT64.min + 1)
_REAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e-40, 3e38, np.inf, -np.inf, np.nan)


def changes(model: onnx.ModelProto) -> list[tuple[str, Change]]:
    """Each with what it changes."""
    kinds = (_of_shapes, _of_opsets, _of_attributes, _of_constants, _of_dtypes)
    return [change for found in kinds for change in found(model)]


def pairs(
    single: Sequence[tuple[str, Change]], count: int, rng: random.Random
) -> Iterator[tuple[str, Change]]:
    """Two changes at once, one after the other; those of dtypes come last."""
    for _ in range(count if len(single) > 1 else 0):
        one, other = sorted(rng.sample(range(len(single)), 2))
        (what, first), (then, second) = single[one], single[other]
        yield f"{what} and {then}", lambda model, a=first, b=second: (a(model), b(model))


def mutant(model: onnx.ModelProto, change: Change) -> onnx.ModelProto:
    """A copy of the model with a change; what comes out of it may have any type."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    change(copy)
    for output in copy.graph.output:
        output.ClearField("type")
    return copy


# -------------------------------------------------------------------- dtypes


def _of_dtypes(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    """All that has the dtype of the first input gets another one."""
    if not model.graph.input:
        return
    old = model.graph.input[0].type.tensor_type.elem_type
    for name in _DTYPES:
        new = getattr(TensorProto, name)
        if new != old != TensorProto.STRING:
            yield f"of dtype {name}", functools.partial(_retype, old, new)


def _retype(old: int, new: int, model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == old:
            value.type.tensor_type.elem_type = new
    for tensor in model.graph.initializer:
        if tensor.data_type == old:
            with np.errstate(all="ignore"):
                _store(tensor, _array(tensor).astype(ir.DataType(new).numpy()))


def _array(tensor: TensorProto) -> np.ndarray:
    return np.asarray(ir.serde.deserialize_tensor(tensor).numpy())


def _store(tensor: TensorProto, array: np.ndarray) -> None:
    name = tensor.name
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    tensor.CopyFrom(ir.serde.serialize_tensor(ir.Tensor(array)))
    tensor.name = name


# -------------------------------------------------------------------- constants


def _of_constants(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    for k, tensor in enumerate(model.graph.initializer):
        if tensor.data_type == TensorProto.STRING:
            continue
        array = _array(tensor)
        if array.size > _MOST_ELEMENTS:
            continue
        flat = array.reshape(-1)
        for special in _special(array.dtype):
            last = flat.copy()
            last[-1:] = special
            yield f"with {tensor.name} {special!r}", _set(k, np.full_like(array, special))
            yield f"with the last of {tensor.name} {special!r}", _set(k, last.reshape(array.shape))
        yield f"with {tensor.name} empty", _set(k, flat[:0])
        yield f"with {tensor.name} longer", _set(k, np.concatenate([flat, flat[:1]]))
        yield f"with an axis more of {tensor.name}", _set(k, array[None])
        if array.size == 1:
            yield f"with {tensor.name} as a scalar", _set(k, flat.reshape(()))


def _set(place: int, array: np.ndarray) -> Change:
    return lambda model: _store(model.graph.initializer[place], array)


def _special(dtype: np.dtype[Any]) -> Sequence[Any]:
    if dtype == np.bool_:
        return (False, True)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return [n for n in {*_WHOLE, info.min, info.max} if info.min <= n <= info.max]
    with np.errstate(all="ignore"):
        return [np.float64(n).astype(dtype) for n in _REAL]


# -------------------------------------------------------------------- attributes


def _of_attributes(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    for k, node in enumerate(model.graph.node):
        for j, attribute in enumerate(node.attribute):
            what = f"{attribute.name} of {node.op_type}"
            for value in _other_values(attribute):
                yield f"with {what} {value!r}", _write(k, j, value)
            yield f"without {what}", lambda m, k=k, j=j: m.graph.node[k].attribute.pop(j)


def _write(node: int, place: int, value: Any) -> Change:
    def write(model: onnx.ModelProto) -> None:
        attribute = model.graph.node[node].attribute[place]
        made = onnx.helper.make_attribute(attribute.name, value, attr_type=attribute.type)
        attribute.CopyFrom(made)

    return write


def _other_values(attribute: AttributeProto) -> list[Any]:
    if attribute.type == AttributeProto.FLOAT:
        return [*_REAL]
    if attribute.name in ("to", "dtype"):
        return [getattr(TensorProto, name) for name in _DTYPES]
    if attribute.type == AttributeProto.INT:
        return [*_WHOLE]
    if attribute.type == AttributeProto.STRING:
        return ["", "nonsense"]
    if attribute.type == AttributeProto.INTS:
        old = list(attribute.ints)
        last = [[*old[:-1], n] for n in _WHOLE] if old else []
        return [*last, old[::-1], old[:-1], [*old, 1], [n + 1 for n in old], [-n for n in old]]
    if attribute.type == AttributeProto.FLOATS:
        old = list(attribute.floats)
        return [*([*old[:-1], n] for n in _REAL), [*old, 1.0]]
    return []


# -------------------------------------------------------------------- shapes


def _of_shapes(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    for k, value in enumerate(model.graph.input):
        if not value.type.tensor_type.HasField("shape"):
            continue
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        ones = [1] * len(dims)
        others = [[], ones, [*ones[:1], *dims[1:]], [*dims[:-1], *ones[:1]], [0] * len(dims)]
        for other in (*others, [1, *dims], dims[1:]):
            if other != dims:
                yield f"with {value.name} of shape {other}", _reshape(k, other)


def _reshape(place: int, dims: list[int | str]) -> Change:
    def reshape(model: onnx.ModelProto) -> None:
        value = model.graph.input[place]
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, dims))

    return reshape


# -------------------------------------------------------------------- opsets


def _of_opsets(model: onnx.ModelProto) -> Iterator[tuple[str, Change]]:
    for version in (7, 9, 10, 11, 12, 13, 14, 16, 18, 19, 20, 21, 22, 23, 24):
        if version != model.opset_import[0].version:
            yield f"at opset {version}", functools.partial(_import, version)


def _import(version: int, model: onnx.ModelProto) -> None:
    model.opset_import[0].version = version
