"""Reductions of integers, whose result does not depend on the order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import (
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


def _register(op_type: str, reducer: Callable[..., Any], bound: Callable[..., Any] | None) -> None:
    """Register the kernel of an op.

    Args:
        op_type: The op.
        reducer: Computes it.
        bound: Returns what no partial result exceeds, of the magnitudes; None where the result is
            an element.
    """

    @kernel(op_type)
    def reduce(
        x: Array, axes: Integers | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        require(x, INTEGERS)
        if not {keepdims, noop_with_empty_axes} <= {0, 1}:
            raise NotExact("a flag is neither 0 nor 1")
        if not x.size:
            raise NotExact("onnxruntime does not see negative axes where there are no elements")
        check_readable(x)
        given = [] if axes is None else integers(axes, "axes")
        if not given and noop_with_empty_axes:
            return x
        which = tuple({normalized_axis(a, x.ndim) for a in given}) or tuple(range(x.ndim))
        kept = range(x.ndim) if keepdims else sorted({*range(x.ndim)} - {*which})
        check_allocatable([1 if k in which else x.shape[k] for k in kept], x.dtype)
        if bound is not None:
            limit = min(_EXACT_IN_DOUBLE, int(np.iinfo(x.dtype).max))
            if not np.max(bound(np.abs(x.astype(np.float64)), axis=which)) <= limit:
                raise NotExact("onnxruntime clamps or rounds integer reductions of this size")
        return np.asarray(reducer(x, axis=which, keepdims=bool(keepdims)), x.dtype)


def _bound_of_products(magnitudes: Array, axis: tuple[int, ...]) -> Any:
    return np.prod(np.maximum(magnitudes, 1), axis=axis)


_register("ReduceSum", np.sum, np.sum)
_register("ReduceProd", np.prod, _bound_of_products)
_register("ReduceMax", np.max, None)
_register("ReduceMin", np.min, None)
