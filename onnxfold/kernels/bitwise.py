"""Ops on the bits of integers: BitShift, BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot."""

from __future__ import annotations

import numpy as np

from onnxfold.kernels.dtypes import INTEGERS, UNSIGNED, elementwise_on, require
from onnxfold.kernels.registry import Array, NotExact, kernel


@kernel("BitShift", since=11)
def bit_shift(x: Array, amount: Array, *, direction: str) -> Array:
    """``x`` shifted by ``amount`` bits, fewer than it has."""
    require(x, UNSIGNED)
    if (amount >= 8 * x.itemsize).any():
        raise NotExact("what C leaves open: not all releases of onnxruntime make it 0")
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    return np.asarray(shift(x, amount))


@kernel("BitwiseAnd", since=18, kind=elementwise_on(INTEGERS))
def bitwise_and(a: Array, b: Array) -> Array:
    """The bits set in both."""
    require(a, INTEGERS)
    return np.asarray(np.bitwise_and(a, b))


@kernel("BitwiseOr", since=18, kind=elementwise_on(INTEGERS))
def bitwise_or(a: Array, b: Array) -> Array:
    """The bits set in either."""
    require(a, INTEGERS)
    return np.asarray(np.bitwise_or(a, b))


@kernel("BitwiseXor", since=18, kind=elementwise_on(INTEGERS))
def bitwise_xor(a: Array, b: Array) -> Array:
    """The bits set in exactly one."""
    require(a, INTEGERS)
    return np.asarray(np.bitwise_xor(a, b))


@kernel("BitwiseNot", since=18, kind=elementwise_on(INTEGERS))
def bitwise_not(x: Array) -> Array:
    """Every bit flipped."""
    require(x, INTEGERS)
    return np.asarray(np.invert(x))
