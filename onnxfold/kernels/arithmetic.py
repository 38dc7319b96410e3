"""Arithmetic that IEEE 754 or two's complement defines completely: Add ... Clip.

float16 and bfloat16 results are rounded after every op; integers wrap; NaN payloads are not
defined. The callers silence NumPy's floating point warnings once for many kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onnxfold.kernels.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOATS,
    INTEGERS,
    NUMBERS,
    ORDERED,
    SIGNED,
    DType,
    broadcast_shape,
    check_allocatable,
    check_readable,
    elementwise_on,
    refuse_misordered,
    require,
)
from onnxfold.kernels.registry import Array, NotExact, Unfoldable, kernel

# Before opset 7 broadcasting was asked for by attributes; onnxruntime has no kernels for that.
BROADCASTS = 7


@kernel("Add", since=BROADCASTS, kind=elementwise_on(NUMBERS))
def add(a: Array, b: Array) -> Array:
    """``a + b``; integers wrap."""
    require(a, NUMBERS)
    return np.asarray(np.add(a, b))


@kernel("Sub", since=BROADCASTS, kind=elementwise_on(NUMBERS))
def sub(a: Array, b: Array) -> Array:
    """``a - b``; integers wrap."""
    require(a, NUMBERS)
    return np.asarray(np.subtract(a, b))


@kernel("Mul", since=BROADCASTS, kind=elementwise_on(NUMBERS))
def mul(a: Array, b: Array) -> Array:
    """``a * b``; integers wrap."""
    require(a, NUMBERS)
    return np.asarray(np.multiply(a, b))


@kernel("Div", since=BROADCASTS, kind=elementwise_on(FLOATS))
def div(a: Array, b: Array) -> Array:
    """``a / b``; integers truncate toward zero. Integer division that traps is Unfoldable."""
    require(a, NUMBERS)
    if a.dtype in FLOATS:
        return np.asarray(np.divide(a, b))
    _check_size(a, b)
    _refuse_traps(a, b)
    if a.dtype in SIGNED:
        # NumPy's integer division floors; taking the remainder off first makes it exact.
        a = np.subtract(a, np.fmod(a, b))
    return np.asarray(np.floor_divide(a, b))


@kernel("Mod", since=10)
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The remainder of integers with the sign of ``b``."""
    require(a, INTEGERS)
    if fmod:
        raise NotExact("onnxruntime computes integer fmod in float64")
    _check_size(a, b)
    _refuse_traps(a, b)
    return np.asarray(np.mod(a, b))


def _check_size(*operands: Array) -> None:
    check_readable(*operands)
    check_allocatable(broadcast_shape(*(x.shape for x in operands)), operands[0].dtype)


def _refuse_traps(a: Array, b: Array) -> None:
    if not np.all(b):
        raise Unfoldable("integer division by zero")
    if a.dtype in SIGNED and (b == -1).any() and (a == np.iinfo(a.dtype).min).any():
        raise Unfoldable("integer division overflows")


@kernel("Neg", since=6, kind=elementwise_on(SIGNED | FLOATS))
def neg(x: Array) -> Array:
    """``-x``; the least integer stays itself."""
    require(x, SIGNED | FLOATS)
    return np.asarray(np.negative(x))


@kernel("Abs", since=6, kind=elementwise_on(NUMBERS))
def absolute(x: Array) -> Array:
    """``|x|``; the least integer stays itself."""
    require(x, NUMBERS)
    return np.asarray(np.abs(x))


@kernel("Sqrt", since=6, kind=elementwise_on(FLOATS))
def sqrt(x: Array) -> Array:
    """The square root, correctly rounded; NaN below zero, -0.0 of -0.0."""
    require(x, FLOATS)
    return np.asarray(np.sqrt(x))


@kernel("Reciprocal", since=6, kind=elementwise_on(FLOATS))
def reciprocal(x: Array) -> Array:
    """``1 / x``, correctly rounded."""
    require(x, FLOATS)
    return np.asarray(np.divide(np.ones((), x.dtype), x))


@kernel("Floor", since=6, kind=elementwise_on(FLOATS))
def floor(x: Array) -> Array:
    """The next integer down."""
    require(x, FLOATS)
    return np.asarray(np.floor(x))


@kernel("Ceil", since=6, kind=elementwise_on(FLOATS))
def ceil(x: Array) -> Array:
    """The next integer up; -0.0 between -1 and 0."""
    require(x, FLOATS)
    return np.asarray(np.ceil(x))


@kernel("Max", since=8, kind=elementwise_on(INTEGERS & ORDERED))
def maximum(*operands: Array) -> Array:
    """The greatest operand; NaN if one of them is NaN."""
    return _extreme(np.maximum, operands)


@kernel("Min", since=8, kind=elementwise_on(INTEGERS & ORDERED))
def minimum(*operands: Array) -> Array:
    """The least operand; NaN if one of them is NaN."""
    return _extreme(np.minimum, operands)


def _extreme(choose: Callable[[Array, Array], Array], operands: Sequence[Array]) -> Array:
    result = operands[0]
    require(result, NUMBERS)
    if result.dtype in FLOATS:
        _check_size(*operands)
    for x in operands[1:]:
        refuse_misordered(result, x)
        result = np.asarray(choose(result, x))
    if result.dtype in FLOATS and len(operands) > 1:
        _refuse_signed_zeros(result, operands)
    return result


def _refuse_signed_zeros(result: Array, operands: Sequence[Array]) -> None:
    """Which of 0.0 and -0.0 onnxruntime takes depends on where SIMD blocks begin."""
    if not (result == 0).any():
        return
    negative = {bool(s) for x in operands for s in np.unique(np.signbit(x[x == 0]))}
    if len(negative) > 1:
        raise NotExact("which of 0.0 and -0.0 is greater is not defined")


@kernel("Clip", since=11, kind=elementwise_on(ORDERED))
def clip(x: Array, low: Array | None = None, high: Array | None = None, *, opset: int) -> Array:
    """``min(max(x, low), high)``; NaN in ``x`` stays, a NaN bound does not bound.

    An omitted bound is the dtype's greatest *finite* value: infinities are cut to it. But for
    bfloat16, and float16 in opset 11, it is infinity.
    """
    require(x, NUMBERS)
    if x.dtype == BFLOAT16 or (x.dtype == FLOAT16 and opset < 12):
        infinity = np.asarray(np.inf, x.dtype)
        low, high = -infinity if low is None else low, infinity if high is None else high
    least, greatest = _range_of(x.dtype)
    low = least if low is None else low.reshape(())
    high = greatest if high is None else high.reshape(())
    return _not_above(_not_below(x, low), high)


def _range_of(dtype: DType) -> tuple[Array, Array]:
    finfo: Any = ml_dtypes.finfo
    info = np.iinfo(dtype) if dtype in INTEGERS else finfo(dtype)
    return np.asarray(info.min, dtype), np.asarray(info.max, dtype)


def _not_below(x: Array, bound: Array) -> Array:
    refuse_misordered(x, bound)
    # np.maximum would let a NaN bound through and choose among 0.0 and -0.0.
    return np.asarray(np.where(x < bound, bound, x))


def _not_above(x: Array, bound: Array) -> Array:
    refuse_misordered(x, bound)
    return np.asarray(np.where(bound < x, bound, x))
