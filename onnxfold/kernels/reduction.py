"""Reductions whose result does not depend on the order: of integers, and extremes of floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import (
    BOOL,
    FLOATS,
    INTEGERS,
    DType,
    Integers,
    check_allocatable,
    check_readable,
    integers,
    normalized_axis,
    require,
)
from onnxfold.kernels.registry import Array, NotExact, kernel

Reducer = Callable[[Array, tuple[int, ...], bool], Any]

# onnxruntime accumulates integers in float64, where 2**53 + 1 is 2**53, and clamps the result.
_EXACT_IN_DOUBLE = (1 << 53) - 1


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    _require_small(x, np.sum(_magnitudes(x), axis=axes))
    return np.sum(x, axis=axes, dtype=x.dtype, keepdims=keepdims)


def _product(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    _require_small(x, np.prod(np.maximum(_magnitudes(x), 1), axis=axes))
    return np.prod(x, axis=axes, dtype=x.dtype, keepdims=keepdims)


def _magnitudes(x: Array) -> Array:
    return np.abs(x.astype(np.float64))


def _require_small(x: Array, greatest: Any) -> None:
    """Raise NotExact unless every partial result, at most ``greatest``, is the same in float64."""
    limit = min(_EXACT_IN_DOUBLE, int(np.iinfo(x.dtype).max))
    if np.size(greatest) and not np.max(greatest) <= limit:
        raise NotExact("onnxruntime clamps or rounds integer reductions of this size")


def _max(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.max(x, axis=axes, keepdims=keepdims)


def _min(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.min(x, axis=axes, keepdims=keepdims)


_SUMS: dict[str, Reducer] = {"ReduceSum": _sum, "ReduceProd": _product}
_EXTREMES: dict[str, Reducer] = {"ReduceMax": _max, "ReduceMin": _min}


def _register(op_type: str, reducer: Reducer, check: Callable[[Array], None]) -> None:
    @kernel(op_type)
    def reduce(
        x: Array, axes: Integers | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        check(x)
        given = None if axes is None else integers(axes, "axes")
        if not given and noop_with_empty_axes:
            return x
        return _reduced(reducer, x, given, keepdims)


def _reduced(reducer: Reducer, x: Array, axes: Sequence[int] | None, keepdims: int) -> Array:
    if x.size == 0 and any(a < 0 for a in axes or ()):
        raise NotExact("onnxruntime does not see negative axes where there are no elements")
    which = tuple({normalized_axis(a, x.ndim) for a in axes}) if axes else tuple(range(x.ndim))
    if reducer in _EXTREMES.values() and 0 in (x.shape[a] for a in which):
        raise NotExact("the extreme of no element")
    _check_size(x, which, keepdims, x.dtype)
    return np.asarray(reducer(x, which, bool(keepdims)))


def _check_size(x: Array, axes: Sequence[int], keepdims: int, dtype: DType) -> None:
    shape = [1 if k in axes else d for k, d in enumerate(x.shape) if keepdims or k not in axes]
    check_allocatable(shape, dtype)


def _integer(x: Array) -> None:
    check_readable(x)
    require(x, INTEGERS)


def _ordered(x: Array) -> None:
    """Refuse NaN and -0.0: without them there is one greatest and one least value."""
    check_readable(x)
    require(x, INTEGERS | FLOATS | {BOOL})
    if x.dtype in FLOATS:
        if np.isnan(x).any():
            raise NotExact("NaN has no order")
        if (np.signbit(x) & (x == 0)).any():
            raise NotExact("which of 0.0 and -0.0 is greater is not defined")


for _name, _reducer in _SUMS.items():
    _register(_name, _reducer, _integer)
for _name, _reducer in _EXTREMES.items():
    _register(_name, _reducer, _ordered)
