"""Reductions whose result does not depend on the order: of integers, and extremes of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import (
    BOOL,
    FLOATS,
    INTEGERS,
    Integers,
    check_allocatable,
    check_readable,
    integers,
    normalized_axis,
    require,
)
from onnxfold.kernels.registry import Array, NotExact, kernel

# onnxruntime accumulates integers in float64, where 2**53 + 1 is 2**53, and clamps the result.
_EXACT_IN_DOUBLE = (1 << 53) - 1


def _sum(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    _require_small(x, np.sum(_magnitudes(x), axis=axis))
    return np.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)


def _product(x: Array, axis: tuple[int, ...], keepdims: bool) -> Any:
    _require_small(x, np.prod(np.maximum(_magnitudes(x), 1), axis=axis))
    return np.prod(x, axis=axis, dtype=x.dtype, keepdims=keepdims)


def _magnitudes(x: Array) -> Array:
    return np.abs(x.astype(np.float64))


def _require_small(x: Array, greatest: Any) -> None:
    """Raise NotExact unless every partial result, at most ``greatest``, is the same in float64."""
    limit = min(_EXACT_IN_DOUBLE, int(np.iinfo(x.dtype).max))
    if np.size(greatest) and not np.max(greatest) <= limit:
        raise NotExact("onnxruntime clamps or rounds integer reductions of this size")


def _register(
    op_type: str, reducer: Callable[..., Any], check: Callable[[Array], None], *, of_none: bool
) -> None:
    """Register the kernel of an op; ``of_none``: it has a result for no elements, too."""

    @kernel(op_type)
    def reduce(
        x: Array, axes: Integers | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        if not {keepdims, noop_with_empty_axes} <= {0, 1}:
            raise NotExact("a flag is neither 0 nor 1")
        check_readable(x)
        check(x)
        given = [] if axes is None else integers(axes, "axes")
        if not given and noop_with_empty_axes:
            return x
        if x.size == 0 and any(a < 0 for a in given):
            raise NotExact("onnxruntime does not see negative axes where there are no elements")
        which = tuple({normalized_axis(a, x.ndim) for a in given}) or tuple(range(x.ndim))
        if not of_none and 0 in (x.shape[a] for a in which):
            raise NotExact("the extreme of no element")
        kept = range(x.ndim) if keepdims else sorted({*range(x.ndim)} - {*which})
        shape = [1 if k in which else x.shape[k] for k in kept]
        check_allocatable(shape, x.dtype)
        return np.asarray(reducer(x, axis=which, keepdims=bool(keepdims)))


def _integer(x: Array) -> None:
    require(x, INTEGERS)


def _ordered(x: Array) -> None:
    """Refuse NaN and -0.0: without them there is one greatest and one least value."""
    require(x, INTEGERS | FLOATS | {BOOL})
    if x.dtype in FLOATS:
        if np.isnan(x).any():
            raise NotExact("NaN has no order")
        if (np.signbit(x) & (x == 0)).any():
            raise NotExact("which of 0.0 and -0.0 is greater is not defined")


_register("ReduceSum", _sum, _integer, of_none=True)
_register("ReduceProd", _product, _integer, of_none=True)
_register("ReduceMax", np.max, _ordered, of_none=False)
_register("ReduceMin", np.min, _ordered, of_none=False)
