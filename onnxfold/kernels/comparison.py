"""Comparisons: Equal, Less, Greater, LessOrEqual, GreaterOrEqual, IsNaN, IsInf."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from onnxfold.kernels.dtypes import (
    BOOL,
    FLOAT8,
    FLOATS,
    NUMBERS,
    STRING,
    DType,
    elementwise_on,
    require,
)
from onnxfold.kernels.registry import Array, kernel

_COMPARABLE = NUMBERS | {BOOL}
_MAYBE_NAN: frozenset[DType] = FLOATS | (FLOAT8 - {np.dtype(ml_dtypes.float8_e8m0fnu)})


@kernel("Equal", since=7, kind=elementwise_on(_COMPARABLE | {STRING}))
def equal(a: Array, b: Array) -> Array:
    """``a == b``: NaN equals nothing, 0.0 equals -0.0, strings are compared as UTF-8 bytes."""
    require(a, _COMPARABLE | {STRING})
    if a.dtype == STRING:
        a, b = as_bytes(a), as_bytes(b)
    return np.asarray(np.equal(a, b)).astype(bool, copy=False)


def as_bytes(strings: Array) -> Array:
    """The same strings, all as ``bytes``: a model may hold both, bytes where they are not UTF-8."""
    result = np.empty(strings.shape, dtype=object)
    result.reshape(-1)[:] = [s.encode() if isinstance(s, str) else bytes(s) for s in strings.flat]
    return result


@kernel("Less", since=7, kind=elementwise_on(NUMBERS))
def less(a: Array, b: Array) -> Array:
    """``a < b``, false if either is NaN."""
    require(a, NUMBERS)
    return np.asarray(np.less(a, b))


@kernel("Greater", since=7, kind=elementwise_on(NUMBERS))
def greater(a: Array, b: Array) -> Array:
    """``a > b``, false if either is NaN."""
    require(a, NUMBERS)
    return np.asarray(np.greater(a, b))


@kernel("LessOrEqual", since=12, kind=elementwise_on(NUMBERS))
def less_or_equal(a: Array, b: Array) -> Array:
    """``a <= b``, false if either is NaN."""
    require(a, NUMBERS)
    return np.asarray(np.less_equal(a, b))


@kernel("GreaterOrEqual", since=12, kind=elementwise_on(NUMBERS))
def greater_or_equal(a: Array, b: Array) -> Array:
    """``a >= b``, false if either is NaN."""
    require(a, NUMBERS)
    return np.asarray(np.greater_equal(a, b))


@kernel("IsNaN", since=9, kind=elementwise_on(_MAYBE_NAN))
def is_nan(x: Array) -> Array:
    """True where ``x`` is NaN."""
    require(x, _MAYBE_NAN)
    return np.asarray(np.isnan(x))


@kernel("IsInf", since=10, kind=elementwise_on(_MAYBE_NAN))
def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """True where ``x`` is an infinity of a sign that is asked for."""
    require(x, _MAYBE_NAN)
    infinite = np.asarray(np.isinf(x))
    if detect_negative and detect_positive:
        return infinite
    if detect_negative:
        return np.asarray(infinite & np.signbit(x))
    if detect_positive:
        return np.asarray(infinite & ~np.signbit(x))
    return np.zeros(x.shape, bool)
