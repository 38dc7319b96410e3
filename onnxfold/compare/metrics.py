"""How far two arrays are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Distance:
    """How far two arrays of one dtype and shape are apart; see `OutputResult` for the fields."""

    differing: int
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    max_ulp: int | None = None
    nonfinite_mismatch: int = 0
    within: bool = True


def distance(a: Array, b: Array, rtol: float, atol: float) -> Distance:
    """Compares two arrays of the same dtype and shape.

    An element is within the tolerance if `abs(a - b) <= atol + rtol * abs(a)`, or if both are
    the same infinity or both NaN. Strings and other objects are equal or not.
    """
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype.kind == "c":
        part = np.float32 if a.dtype == np.complex64 else np.float64
        return distance(a.view(part), b.view(part), rtol, atol)
    if is_float(a.dtype):
        return _float_distance(a, b, rtol, atol)
    differing = np.flatnonzero(a != b)
    if not differing.size or not _is_numeric(a.dtype):
        return Distance(differing=differing.size, within=not differing.size)
    return _integer_distance(a[differing], b[differing], rtol, atol)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floating-point numbers, small formats included."""
    return dtype.kind == "f" or _is_small_float(dtype)


def _is_small_float(dtype: np.dtype[Any]) -> bool:
    return str(dtype.name).startswith(("bfloat", "float4", "float6", "float8"))


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or str(dtype.name).startswith(("int", "uint"))


def _integer_distance(a: Array, b: Array, rtol: float, atol: float) -> Distance:
    """Over elements that differ; in float64, exact below 2**53."""
    a_wide, b_wide = a.astype(np.float64), b.astype(np.float64)
    absolute = np.abs(a_wide - b_wide)
    return Distance(
        differing=a.size,
        max_abs_error=float(absolute.max()),
        max_rel_error=_max_relative(absolute, a_wide),
        within=bool(rtol or atol) and bool(np.all(absolute <= atol + rtol * np.abs(a_wide))),
    )


def _float_distance(a: Array, b: Array, rtol: float, atol: float) -> Distance:
    a_order, b_order = _ordered(a), _ordered(b)
    a_nan, b_nan = _isnan(a), _isnan(b)
    differ = (_bits(a) != _bits(b)) & ~(a_nan & b_nan)
    where = np.flatnonzero(differ)
    if not where.size:
        return Distance(differing=0, max_ulp=0)
    with np.errstate(all="ignore"):
        a_wide, b_wide = a[where].astype(np.float64), b[where].astype(np.float64)
        finite = np.isfinite(a_wide) & np.isfinite(b_wide)
        a_wide, b_wide = a_wide[finite], b_wide[finite]
        absolute = np.abs(a_wide - b_wide)
        mismatch = int(where.size - a_wide.size)
        return Distance(
            differing=int(where.size),
            max_abs_error=float(absolute.max(initial=0.0)),
            max_rel_error=_max_relative(absolute, a_wide),
            max_ulp=_max_ulp(a_order[where][finite], b_order[where][finite]),
            nonfinite_mismatch=mismatch,
            within=not mismatch
            and bool(rtol or atol)
            and bool(np.all(absolute <= atol + rtol * np.abs(a_wide))),
        )


def _max_relative(absolute: Array, reference: Array) -> float:
    """Largest `absolute / abs(reference)`; infinite where only the reference is zero."""
    with np.errstate(all="ignore"):
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(reference))
    return float(relative.max(initial=0.0))


def _bits(array: Array) -> Array:
    """The same bytes as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _isnan(array: Array) -> Array:
    """`isnan` for every float format: a format without NaN has none."""
    try:
        result: Array = np.isnan(array)
    except TypeError:
        return np.zeros(array.shape, dtype=bool)
    return result


def _ordered(array: Array) -> Array:
    """Integers in the order of the floats, consecutive for neighbours; both zeros are 0.

    Sign-magnitude to two's complement, in int64. float4 and float6 are kept in a byte each.
    """
    bits = _bits(array).astype(np.uint64)
    width = _bit_width(array.dtype)
    sign = (bits >> np.uint64(width - 1)).astype(bool)
    magnitude = (bits & np.uint64((1 << (width - 1)) - 1)).astype(np.int64)
    result: Array = np.where(sign, -magnitude, magnitude)
    return result


def _bit_width(dtype: np.dtype[Any]) -> int:
    """Bits of one element, without padding; float8_e8m0fnu, unsigned, counts a ninth for a sign."""
    if not _is_small_float(dtype):
        return dtype.itemsize * 8
    if dtype.name == "float8_e8m0fnu":
        return 9
    return int(ml_dtypes.finfo(dtype).bits)  # type: ignore[no-untyped-call]


def _max_ulp(a: Array, b: Array) -> int:
    """Largest distance of ordered integers; any difference of int64 fits uint64."""
    if not a.size:
        return 0
    larger, smaller = np.maximum(a, b), np.minimum(a, b)
    return int((larger.astype(np.uint64) - smaller.astype(np.uint64)).max())
