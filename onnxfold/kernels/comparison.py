"""Comparisons: Equal, Less, Greater, LessOrEqual, GreaterOrEqual."""

from __future__ import annotations

import numpy as np

from onnxfold.kernels.dtypes import (
    BOOL,
    NUMBERS,
    STRING,
    elementwise_on,
    require,
)
from onnxfold.kernels.registry import Array, kernel

_COMPARABLE = NUMBERS | {BOOL}


@kernel("Equal", since=7, kind=elementwise_on(_COMPARABLE | {STRING}))
def equal(a: Array, b: Array) -> Array:
    """``a == b``: NaN equals nothing, 0.0 equals -0.0, strings are compared as UTF-8 bytes."""
    require(a, _COMPARABLE | {STRING})
    if a.dtype == STRING:
        a, b = as_bytes(a), as_bytes(b)
    return np.asarray(np.equal(a, b)).astype(bool, copy=False)


def as_bytes(strings: Array) -> Array:
    """Return the same strings, all as ``bytes``: a model may hold both, bytes where they are not
    UTF-8.
    """
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
