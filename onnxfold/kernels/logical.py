"""Boolean ops and selection: And, Or, Not, Where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    DType,
    broadcast_shape,
    check_allocatable,
    elementwise_on,
    require,
)
from onnxfold.kernels.registry import Array, Kind, NotExact, kernel

_BOOL = frozenset((BOOL,))
_SELECTED_BY_VALUE = frozenset((FLOAT16, FLOAT32, FLOAT64))


@kernel("And", since=7, kind=elementwise_on(_BOOL))
def logical_and(a: Array, b: Array) -> Array:
    """``a and b``."""
    require(a, _BOOL)
    return np.asarray(np.logical_and(a, b))


@kernel("Or", since=7, kind=elementwise_on(_BOOL))
def logical_or(a: Array, b: Array) -> Array:
    """``a or b``."""
    require(a, _BOOL)
    return np.asarray(np.logical_or(a, b))


@kernel("Not", kind=elementwise_on(_BOOL))
def logical_not(x: Array) -> Array:
    """The opposite."""
    require(x, _BOOL)
    return np.asarray(np.logical_not(x))


def _where_kind(dtypes: Sequence[DType | None], _: Mapping[str, Any]) -> Kind:
    return Kind.GENERAL if dtypes[1] in _SELECTED_BY_VALUE else Kind.ELEMENTWISE


@kernel("Where", since=9, kind=_where_kind)
def where(condition: Array, x: Array, y: Array) -> Array:
    """``x`` where the condition is true, else ``y``; all three broadcast; any dtype.

    onnxruntime puts floats together by what is "not zero". Which -0.0 comes out as 0.0 depends on
    the axes along which the condition and a branch repeat.
    """
    if x.dtype in _SELECTED_BY_VALUE:
        check_allocatable(broadcast_shape(condition.shape, x.shape, y.shape), x.dtype)
    selected = np.asarray(np.where(condition, x, y))
    if x.dtype in _SELECTED_BY_VALUE and ((selected == 0) & np.signbit(selected)).any():
        raise NotExact("which of 0.0 and -0.0 is selected depends on how operands repeat")
    return selected
