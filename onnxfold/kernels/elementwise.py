"""Element-wise ops that IEEE 754, two's complement or logic fully define: Add, Cast and others.

float16 and bfloat16 results are rounded after every op; integers wrap; NaN payloads are undefined.
The callers disable NumPy's floating-point warnings once for many kernels.

onnxruntime's code for arm64 differs from IEEE 754 in a few cases, which are left to onnxruntime
there. On CPUs of other families than x86-64 and arm64, all floating-point arithmetic is left to it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.cpu_family import CpuFamily, cpu_family
from onnxfold.kernels.registry import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT64,
    INTEGERS,
    NUMBERS,
    ORDERED,
    SIGNED,
    STRING,
    UINT64,
    Array,
    DType,
    Kind,
    NotExact,
    Unfoldable,
    broadcast_shape,
    check_allocatable,
    elementwise_on,
    kernel,
    require,
)
from onnxfold.pool.buffer import distinct

_LOGICAL = frozenset((BOOL,))
# Before opset 7, broadcasting was enabled by attributes; onnxruntime has no kernels for that.
_BROADCASTS = 7


_EXACT: tuple[tuple[str, int, np.ufunc, frozenset[DType]], ...] = (
    ("Abs", 6, np.absolute, NUMBERS),
    ("Add", _BROADCASTS, np.add, NUMBERS),
    ("And", _BROADCASTS, np.logical_and, _LOGICAL),
    ("Ceil", 6, np.ceil, FLOATS),
    ("Equal", _BROADCASTS, np.equal, NUMBERS | _LOGICAL),
    ("Floor", 6, np.floor, FLOATS),
    ("Greater", _BROADCASTS, np.greater, NUMBERS),
    ("GreaterOrEqual", 12, np.greater_equal, NUMBERS),
    ("Less", _BROADCASTS, np.less, NUMBERS),
    ("LessOrEqual", 12, np.less_equal, NUMBERS),
    ("Mul", _BROADCASTS, np.multiply, NUMBERS),
    ("Neg", 6, np.negative, SIGNED | FLOATS),
    ("Not", 1, np.logical_not, _LOGICAL),
    ("Or", _BROADCASTS, np.logical_or, _LOGICAL),
    ("Reciprocal", 6, np.reciprocal, FLOATS),
    ("Sqrt", 6, np.sqrt, FLOATS),
    ("Sub", _BROADCASTS, np.subtract, NUMBERS),
)
"""Ops, the first opset, the function that computes them, and the dtypes for which it is exact."""

_ESTIMATED_ON_ARM64 = {"Reciprocal": frozenset((FLOAT32,))}
"""Dtypes for which onnxruntime's vector code for arm64 (Eigen) improves an estimate of the result,
whose last bit may be wrong."""


def _proven(op_type: str, dtypes: frozenset[DType]) -> frozenset[DType]:
    """Return the dtypes for which a kernel is exact on the CPU of this process."""
    if cpu_family() is CpuFamily.X86_64:
        return dtypes
    if cpu_family() is CpuFamily.ARM64:
        return dtypes - _ESTIMATED_ON_ARM64.get(op_type, frozenset())
    return dtypes - FLOATS


def _register(op_type: str, since: int, compute: np.ufunc, accepted: frozenset[DType]) -> None:
    def unary(x: Array) -> Array:
        require(x, accepted)
        return np.asarray(compute(x))

    def binary(a: Array, b: Array) -> Array:
        require(a, accepted)
        return np.asarray(compute(a, b))

    register = kernel(op_type, since=since, kind=elementwise_on(accepted))
    register(unary if compute.nin == 1 else binary)


for _op_type, _since, _compute, _accepted in _EXACT:
    _register(_op_type, _since, _compute, _proven(_op_type, _accepted))

_DIVIDED = _proven("Div", NUMBERS)


@kernel("Div", since=_BROADCASTS, kind=elementwise_on(_DIVIDED & FLOATS))
def div(a: Array, b: Array) -> Array:
    """Return ``a / b``; integers truncate toward zero, and raise Unfoldable if they trap."""
    require(a, _DIVIDED)
    if a.dtype in FLOATS:
        return np.asarray(np.divide(a, b))
    _refuse_traps(a, b)
    if a.dtype in SIGNED:
        # NumPy's integer division floors; subtracting the remainder first makes it exact.
        a = np.subtract(a, np.fmod(a, b))
    return np.asarray(np.floor_divide(a, b))


@kernel("Mod", since=10)
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """Return the remainder of integers with the sign of ``b``."""
    require(a, INTEGERS)
    if fmod:
        raise NotExact("onnxruntime computes integer fmod in float64")
    _refuse_traps(a, b)
    return np.asarray(np.mod(a, b))


def _refuse_traps(a: Array, b: Array) -> None:
    check_allocatable(broadcast_shape(a.shape, b.shape), a.dtype)
    a, b = distinct(a), distinct(b)
    if not np.all(b):
        raise Unfoldable("integer division by zero")
    if a.dtype in SIGNED and (b == -1).any() and (a == np.iinfo(a.dtype).min).any():
        raise Unfoldable("integer division overflows")


_CLIPPED = _proven("Clip", ORDERED)
# On arm64, onnxruntime's vector code returns 0.0 for max(-0.0, 0.0), and its scalar code -0.0.
_CLIPS_ZEROS = cpu_family() is CpuFamily.X86_64


@kernel("Clip", since=12, kind=elementwise_on(_CLIPPED if _CLIPS_ZEROS else _CLIPPED - FLOATS))
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Return ``min(max(x, low), high)``; NaN in ``x`` stays, a NaN bound is ignored.

    An omitted bound is the dtype's greatest *finite* value, to which infinities are clipped. For
    bfloat16 it is infinity.
    """
    require(x, _CLIPPED)
    finfo: Any = ml_dtypes.finfo
    info = np.iinfo(x.dtype) if x.dtype in INTEGERS else finfo(x.dtype)
    least, greatest = info.min, info.max
    if x.dtype == BFLOAT16:
        least, greatest = -np.inf, np.inf
    low = np.asarray(least, x.dtype) if low is None else low.reshape(())
    high = np.asarray(greatest, x.dtype) if high is None else high.reshape(())
    if not _CLIPS_ZEROS and x.dtype in FLOATS and (low == 0 or high == 0):
        raise NotExact("on this CPU, the sign of a zero depends on its position")
    # np.maximum would propagate a NaN bound and choose between 0.0 and -0.0.
    x = np.asarray(np.where(x < low, low, x))
    return np.asarray(np.where(high < x, high, x))


_BY_VALUE = frozenset((FLOAT16, FLOAT32, FLOAT64))


@kernel("Where", since=9, kind=lambda t, _: Kind.GENERAL if t[1] in _BY_VALUE else Kind.ELEMENTWISE)
def where(condition: Array, x: Array, y: Array) -> Array:
    """Return ``x`` where the condition is true, else ``y``; all three broadcast; any dtype.

    onnxruntime merges floats by testing for "not zero". Which -0.0 becomes 0.0 depends on the axes
    along which the condition and a branch repeat.
    """
    if x.dtype in _BY_VALUE:
        check_allocatable(broadcast_shape(condition.shape, x.shape, y.shape), x.dtype)
    selected = np.asarray(np.where(condition, x, y))
    if x.dtype in _BY_VALUE and ((selected == 0) & np.signbit(selected)).any():
        raise NotExact("which of 0.0 and -0.0 is selected depends on how operands repeat")
    return selected


_CASTABLE = _proven("Cast", NUMBERS | {BOOL})
# On arm64, onnxruntime's vector code converts 64-bit integers to float32 through float64. That
# rounds twice unless the number is exact in float64.
_ROUNDS_ONCE = cpu_family() is CpuFamily.X86_64
_DOUBLE_EXACT = 1 << 53


def _cast_kind(dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
    source, target = dtypes[0], _numpy_dtype(attributes["to"])
    if source == target:
        fails = source == STRING
    else:
        fails = source not in _CASTABLE or target not in _CASTABLE
        fails = fails or (source in FLOATS and target in INTEGERS)
        fails = fails or _may_round_twice(source, target)
    return Kind.GENERAL if fails else Kind.ELEMENTWISE


@kernel("Cast", since=6, kind=_cast_kind)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """Return the elements of ``x`` in the dtype with ONNX number ``to``.

    Floats are truncated toward zero to integers, integers wrap, everything but 0 is true. float64
    is converted to 16-bit floats through float32, which rounds twice.
    """
    target = _numpy_dtype(to)
    if x.dtype == target:
        return x
    if x.dtype not in _CASTABLE or target not in _CASTABLE:
        raise NotExact(f"no exact cast from {x.dtype.name} to {target.name}")
    if x.dtype in FLOATS and target in INTEGERS:
        _refuse_out_of_range(x, target)
    if _may_round_twice(x.dtype, target):
        _refuse_beyond_float64(x)
    if x.dtype == FLOAT64 and target in (FLOAT16, BFLOAT16):
        x = x.astype(FLOAT32)  # as onnxruntime rounds
    return np.asarray(x.astype(target))


@kernel("CastLike", since=15)
def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """Return the elements of ``x`` in the dtype of ``like``, see `cast`."""
    return cast(x, to=ir.DataType.from_numpy(like.dtype))


@functools.cache
def _numpy_dtype(number: int) -> DType:
    return ir.DataType(number).numpy()


def _may_round_twice(source: DType | None, target: DType) -> bool:
    """Return whether onnxruntime may round integers twice that float64 cannot represent."""
    return not _ROUNDS_ONCE and source in (INT64, UINT64) and target == FLOAT32


def _refuse_beyond_float64(x: Array) -> None:
    if x.size and (int(x.max()) > _DOUBLE_EXACT or int(x.min()) < -_DOUBLE_EXACT):
        raise NotExact("on this CPU, large integers are rounded twice")


def _refuse_out_of_range(x: Array, target: DType) -> None:
    check_allocatable(x.shape, target)
    if not x.size:
        return
    x = distinct(x)
    # Bounds as float64: the upper one is exclusive, as the greatest int64 is not representable.
    info = np.iinfo(target)
    low, high = float(info.min), float(int(info.max) + 1)
    least, greatest = float(x.min()), float(x.max())
    if not (low - 1 < least and greatest < high) or (low - 1 == low and least < low):
        raise NotExact(f"a value is NaN or out of range for {target.name}")
