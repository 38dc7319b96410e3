"""Generate random models with chains of ops on constants that are repeated to dynamic sizes.

ConstantOfShape, Expand or Tile repeats a constant. Elements include NaN and -0.0, and dynamic sizes
include 0 and 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .generate import Case

_OPSETS = [13, 15, 17, 18, 21]
_SIZES = {"N": [2, 1, 0, 3], "M": [3, 1, 5, 0]}
"""The size of each symbolic dim in each run."""
_FLOATS = [0.0, -0.0, 1.0, 0.5, -2.0, float("nan"), 3e38, 1e-40]
_MOST_ELEMENTS = 300
_MOST_AXES = 5

Dim = int | str


@dataclass(frozen=True)
class _Value:
    name: str
    dtype: int
    dims: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def static_axes(self) -> list[int]:
        return [k for k, dim in enumerate(self.dims) if isinstance(dim, int)]


class _Maker:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._arrays = np.random.default_rng(seed)
        self.opset = self._rng.choice(_OPSETS)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._count = 0
        self.inputs = [
            _Value("x", TensorProto.FLOAT, ("N", "M", 4)),
            _Value("z", TensorProto.FLOAT, ("N", 4)),
        ]

    def model(self) -> onnx.ModelProto:
        values = [self._source() for _ in range(self._rng.randint(1, 3))]
        for _ in range(self._rng.randint(2, 12)):
            result = self._step(self._rng.choice(values), values)
            if result is not None:
                values.append(result)
        outputs = [self._mixed(value) for value in values if self._rng.random() < 0.5]
        outputs.append(self._mixed(values[-1]))
        found = {value.name: value for value in outputs if value is not None}
        infos = [
            helper.make_tensor_value_info(v.name, v.dtype, [None] * v.rank) for v in found.values()
        ]
        inputs = [helper.make_tensor_value_info(v.name, v.dtype, v.dims) for v in self.inputs]
        graph = helper.make_graph(self._nodes, "g", inputs, infos, self._tensors)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9
        )

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self._name()
        self._nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def _tensor(self, array: np.ndarray) -> str:
        name = self._name()
        self._tensors.append(numpy_helper.from_array(array, name))
        return name

    def _ints(self, *numbers: int) -> str:
        return self._tensor(np.array(numbers, np.int64))

    def _array(self, dtype: int, shape: Sequence[int]) -> np.ndarray:
        if dtype == TensorProto.BOOL:
            return self._arrays.random(shape) < 0.5
        if dtype == TensorProto.INT64:
            return self._arrays.integers(-3, 4, shape)
        if self._rng.random() < 0.5:
            return self._arrays.standard_normal(shape).astype(np.float32)
        return self._arrays.choice(np.array(_FLOATS, np.float32), shape)

    def _constant(self, dtype: int, shape: Sequence[int]) -> str:
        return self._tensor(np.asarray(self._array(dtype, shape)))

    def _vector(self, dims: Sequence[Dim]) -> str:
        """Return the name of a vector of sizes, which takes symbolic dims from the shape of x."""
        parts = []
        for dim in dims:
            if isinstance(dim, int):
                parts.append(self._ints(dim))
                continue
            axis = 0 if dim == "N" else 1
            if self.opset >= 15 and self._rng.random() < 0.5:
                parts.append(self._node("Shape", ["x"], start=axis, end=axis + 1))
            else:
                shape = self._node("Shape", ["x"])
                parts.append(self._node("Gather", [shape, self._ints(axis)]))
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, axis=0)

    def _dims(self) -> tuple[Dim, ...]:
        rank = self._rng.randint(1, 4)
        dims: list[Dim] = [self._rng.choice([1, 2, 3, 4, "N", "M"]) for _ in range(rank)]
        if all(isinstance(dim, int) for dim in dims):
            dims[self._rng.randrange(rank)] = "N"
        return tuple(dims)

    def _source(self) -> _Value:
        dims = self._dims()
        dtype = self._rng.choice([TensorProto.FLOAT] * 3 + [TensorProto.INT64, TensorProto.BOOL])
        kind = self._rng.choice(["fill", "expand", "expand", "tile"])
        if kind == "fill":
            value = numpy_helper.from_array(self._array(dtype, [1]))
            return _Value(
                self._node("ConstantOfShape", [self._vector(dims)], value=value), dtype, dims
            )
        own = [d if isinstance(d, int) and self._rng.random() < 0.7 else 1 for d in dims]
        if kind == "tile":
            repeats = [d if size == 1 else 1 for d, size in zip(dims, own, strict=True)]
            name = self._node("Tile", [self._constant(dtype, own), self._vector(repeats)])
            return _Value(name, dtype, dims)
        while own and own[0] == 1 and self._rng.random() < 0.5:
            own.pop(0)
        name = self._node("Expand", [self._constant(dtype, own), self._vector(dims)])
        return _Value(name, dtype, dims)

    def _step(self, value: _Value, values: list[_Value]) -> _Value | None:
        """Return the result of a random op on the value, or None if the op does not apply.

        The other operand of the op, if any, may be one of ``values``.
        """
        steps: list[Callable[[_Value, list[_Value]], _Value | None]] = [
            self._unary,
            self._unary,
            self._binary,
            self._binary,
            self._cast,
            self._where,
            self._transposed,
            self._unsqueezed,
            self._squeezed,
            self._reshaped,
            self._sliced,
            self._concatenated,
            self._gathered,
            self._padded,
            self._reduced,
            self._along_axis,
            self._product,
            self._split,
        ]
        return self._rng.choice(steps)(value, values)

    def _as_float(self, value: _Value) -> _Value:
        if value.dtype == TensorProto.FLOAT:
            return value
        return _Value(self._node("Cast", [value.name], to=1), TensorProto.FLOAT, value.dims)

    def _unary(self, value: _Value, values: list[_Value]) -> _Value | None:
        if value.dtype == TensorProto.BOOL:
            return _Value(self._node("Not", [value.name]), value.dtype, value.dims)
        ops = ["Neg", "Abs"]
        if value.dtype == TensorProto.FLOAT:
            ops += ["Sqrt", "Exp", "Sin", "Sigmoid", "Tanh", "Relu", "Floor", "Clip", "Erf", "Log"]
        op = self._rng.choice(ops)
        operands = [value.name]
        if op == "Clip":
            operands.append(self._tensor(np.array(self._rng.choice([-1, -0.0, 0]), np.float32)))
        return _Value(self._node(op, operands), value.dtype, value.dims)

    def _binary(self, value: _Value, values: list[_Value]) -> _Value | None:
        others = [v for v in values if v.dtype == value.dtype and v.dims == value.dims]
        if others and self._rng.random() < 0.4:
            other = self._rng.choice(others).name
        else:
            dims = [d if isinstance(d, int) and self._rng.random() < 0.6 else 1 for d in value.dims]
            other = self._constant(value.dtype, dims[self._rng.randint(0, len(dims)) :])
        if value.dtype == TensorProto.BOOL:
            ops = ["And", "Or", "Xor", "Equal"]
        else:
            ops = ["Add", "Sub", "Mul", "Max", "Min", "Less", "Equal", "GreaterOrEqual"]
            ops += ["Div", "Pow"] if value.dtype == TensorProto.FLOAT else []
        op = self._rng.choice(ops)
        operands = [value.name, other]
        self._rng.shuffle(operands)
        is_predicate = op in ("Less", "Equal", "GreaterOrEqual", "And", "Or", "Xor")
        dtype = TensorProto.BOOL if is_predicate else value.dtype
        return _Value(self._node(op, operands), dtype, value.dims)

    def _cast(self, value: _Value, values: list[_Value]) -> _Value | None:
        to = self._rng.choice([TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL])
        return _Value(self._node("Cast", [value.name], to=to), to, value.dims)

    def _where(self, value: _Value, values: list[_Value]) -> _Value | None:
        conditions = [v for v in values if v.dtype == TensorProto.BOOL and v.dims == value.dims]
        if not conditions or value.dtype == TensorProto.BOOL:
            return None
        branches = [value.name, self._constant(value.dtype, [])]
        self._rng.shuffle(branches)
        condition = self._rng.choice(conditions).name
        return _Value(self._node("Where", [condition, *branches]), value.dtype, value.dims)

    def _transposed(self, value: _Value, values: list[_Value]) -> _Value | None:
        perm = list(range(value.rank))
        self._rng.shuffle(perm)
        dims = tuple(value.dims[k] for k in perm)
        return _Value(self._node("Transpose", [value.name], perm=perm), value.dtype, dims)

    def _unsqueezed(self, value: _Value, values: list[_Value]) -> _Value | None:
        if value.rank >= _MOST_AXES:
            return None
        axis = self._rng.randint(0, value.rank)
        dims = (*value.dims[:axis], 1, *value.dims[axis:])
        return _Value(self._node("Unsqueeze", [value.name, self._ints(axis)]), value.dtype, dims)

    def _squeezed(self, value: _Value, values: list[_Value]) -> _Value | None:
        ones = [k for k, dim in enumerate(value.dims) if dim == 1]
        if not ones or value.rank == 1:
            return None
        axis = self._rng.choice(ones)
        dims = (*value.dims[:axis], *value.dims[axis + 1 :])
        return _Value(self._node("Squeeze", [value.name, self._ints(axis)]), value.dtype, dims)

    def _reshaped(self, value: _Value, values: list[_Value]) -> _Value | None:
        pairs = [k for k in value.static_axes if k + 1 in value.static_axes]
        if pairs:
            axis = self._rng.choice(pairs)
            joined = int(value.dims[axis]) * int(value.dims[axis + 1])
            dims = (*value.dims[:axis], joined, *value.dims[axis + 2 :])
        elif 4 in value.dims and value.rank < _MOST_AXES:
            axis = value.dims.index(4)
            dims = (*value.dims[:axis], 2, 2, *value.dims[axis + 1 :])
        else:
            return None
        if self.opset < 14:  # without allowzero, a size of 0 is replaced by the size of the operand
            return None
        name = self._node("Reshape", [value.name, self._vector(dims)], allowzero=1)
        return _Value(name, value.dtype, dims)

    def _sliced(self, value: _Value, values: list[_Value]) -> _Value | None:
        axis = self._rng.randrange(value.rank)
        size = value.dims[axis]
        if not isinstance(size, int):
            operands = [value.name, self._ints(0), self._ints(1 << 60), self._ints(axis)]
            return _Value(self._node("Slice", operands), value.dtype, value.dims)
        start = self._rng.randint(0, max(0, size - 1))
        step = self._rng.choice([1, 1, 2])
        operands = [value.name, self._ints(start), self._ints(1 << 60), self._ints(axis)]
        dims = (*value.dims[:axis], len(range(start, size, step)), *value.dims[axis + 1 :])
        name = self._node("Slice", [*operands, self._ints(step)])
        return _Value(name, value.dtype, dims)

    def _concatenated(self, value: _Value, values: list[_Value]) -> _Value | None:
        if not value.static_axes:
            return None
        axis = self._rng.choice(value.static_axes)
        others = [v for v in values if v.dtype == value.dtype and v.dims == value.dims]
        parts = [value, *self._rng.choices([value, *others], k=self._rng.randint(1, 2))]
        size = int(value.dims[axis]) * len(parts)
        dims = (*value.dims[:axis], size, *value.dims[axis + 1 :])
        if size > _MOST_ELEMENTS // 10:
            return None
        name = self._node("Concat", [part.name for part in parts], axis=axis)
        return _Value(name, value.dtype, dims)

    def _gathered(self, value: _Value, values: list[_Value]) -> _Value | None:
        axes = [k for k in value.static_axes if value.dims[k]]
        if not axes:
            return None
        axis = self._rng.choice(axes)
        size = int(value.dims[axis])
        shape = self._rng.choice([[], [1], [2]])
        indices = self._tensor(np.array(self._arrays.integers(-size, size, shape), np.int64))
        dims = (*value.dims[:axis], *shape, *value.dims[axis + 1 :])
        if not dims:
            return None
        return _Value(self._node("Gather", [value.name, indices], axis=axis), value.dtype, dims)

    def _padded(self, value: _Value, values: list[_Value]) -> _Value | None:
        if not value.static_axes or value.dtype != TensorProto.FLOAT:
            return None
        axis = self._rng.choice(value.static_axes)
        pads = [0] * (2 * value.rank)
        pads[axis] = 1
        dims = (*value.dims[:axis], int(value.dims[axis]) + 1, *value.dims[axis + 1 :])
        operands = [value.name, self._ints(*pads)]
        if self._rng.random() < 0.5:
            operands.append(self._constant(value.dtype, []))
        return _Value(self._node("Pad", operands), value.dtype, dims)

    def _reduced(self, value: _Value, values: list[_Value]) -> _Value | None:
        if not value.static_axes or value.rank == 1:
            return None
        value = self._as_float(value)
        axis = self._rng.choice(value.static_axes)
        keeps = self._rng.randint(0, 1)
        op = self._rng.choice(["ReduceSum", "ReduceMax", "ReduceMean"])
        dims = (*value.dims[:axis], *([1] if keeps else []), *value.dims[axis + 1 :])
        if op == "ReduceSum" or self.opset >= 18:
            name = self._node(op, [value.name, self._ints(axis)], keepdims=keeps)
        else:
            name = self._node(op, [value.name], axes=[axis], keepdims=keeps)
        return _Value(name, value.dtype, dims)

    def _along_axis(self, value: _Value, values: list[_Value]) -> _Value | None:
        if not value.static_axes:
            return None
        value = self._as_float(value)
        axis = self._rng.choice(value.static_axes)
        op = self._rng.choice(["Softmax", "CumSum", "Trilu"])
        if op == "CumSum":
            name = self._node(op, [value.name, self._tensor(np.array(axis, np.int64))])
        elif op == "Softmax":
            name = self._node(op, [value.name], axis=axis)
        elif self.opset >= 14 and value.rank > 1:
            name = self._node(op, [value.name])
        else:
            return None
        return _Value(name, value.dtype, value.dims)

    def _product(self, value: _Value, values: list[_Value]) -> _Value | None:
        depth = value.dims[-1]
        if value.rank < 2 or not isinstance(depth, int):
            return None
        value = self._as_float(value)
        name = self._node("MatMul", [value.name, self._constant(value.dtype, [depth, 3])])
        return _Value(name, value.dtype, (*value.dims[:-1], 3))

    def _split(self, value: _Value, values: list[_Value]) -> _Value | None:
        axes = [k for k in value.static_axes if int(value.dims[k]) in (2, 4)]
        if not axes:
            return None
        axis = self._rng.choice(axes)
        half = int(value.dims[axis]) // 2
        names = [self._name(), self._name()]
        operands = [value.name, self._ints(half, half)]
        self._nodes.append(helper.make_node("Split", operands, names, axis=axis))
        dims = (*value.dims[:axis], half, *value.dims[axis + 1 :])
        values.append(_Value(names[0], value.dtype, dims))
        return _Value(names[1], value.dtype, dims)

    def _mixed(self, value: _Value) -> _Value | None:
        """Return an output: a copy of a value, or a value that also depends on input elements."""
        if self._rng.random() < 0.3:
            name = self._node("Identity", [value.name])
            return _Value(name, value.dtype, value.dims)
        value = self._as_float(value)
        dims = list(value.dims)
        spread = self._node("Expand", [self._changing(), self._vector(dims)])
        op = self._rng.choice(["Add", "Mul", "Sub", "Concat", "Where"])
        operands = [spread, value.name]
        self._rng.shuffle(operands)
        if op == "Concat":
            return _Value(self._node(op, operands, axis=-1), value.dtype, value.dims)
        if op == "Where":
            condition = self._node("Less", [spread, self._tensor(np.array(0, np.float32))])
            operands.insert(0, condition)
        return _Value(self._node(op, operands), value.dtype, value.dims)

    def _changing(self) -> str:
        """Return the name of a scalar that depends on the elements of an input."""
        axes = self._ints(0, 1) if self.opset >= 13 else ""
        return self._node("ReduceSum", ["z", axes], keepdims=0)


def generate(seed: int) -> Case:
    """Return the model of a seed with feeds of several sizes."""
    maker = _Maker(seed)
    rng = np.random.default_rng(seed)
    feeds = []
    for n, m in zip(*_SIZES.values(), strict=True):
        feeds.append(
            {
                "x": rng.standard_normal((n, m, 4), np.float32),
                "z": rng.standard_normal((n, 4), np.float32),
            }
        )
    return Case(seed, maker.model(), feeds)
