"""Cast between booleans, integers of 8 to 64 bits and floats of 16 to 64.

Strings, 8-bit floats and all narrower types are left to onnxruntime.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INTEGERS,
    NUMBERS,
    STRING,
    DType,
    check_allocatable,
)
from onnxfold.kernels.registry import Array, Kind, NotExact, kernel
from onnxfold.pool.buffer import distinct

_CASTABLE = NUMBERS | {BOOL}


def _cast_kind(dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
    source, target = dtypes[0], _numpy_dtype(attributes["to"])
    if source == target:
        fails = source == STRING
    else:
        fails = source not in _CASTABLE or target not in _CASTABLE
        fails = fails or (source in FLOATS and target in INTEGERS)
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
    if x.dtype == FLOAT64 and target in (FLOAT16, BFLOAT16):
        x = x.astype(FLOAT32)  # as onnxruntime rounds
    return np.asarray(x.astype(target))


@functools.cache
def _numpy_dtype(number: int) -> DType:
    return ir.DataType(number).numpy()


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
