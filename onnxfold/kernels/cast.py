"""Cast and CastLike between numeric dtypes; strings are left to onnxruntime."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INTEGERS,
    STRING,
    DType,
    check_allocatable,
    check_readable,
)
from onnxfold.kernels.registry import Array, Kind, NotExact, kernel

Converter = Callable[[Array], Array]

_POWERS_OF_TWO: DType = np.dtype(ml_dtypes.float8_e8m0fnu)
_FLOAT4: DType = np.dtype(ml_dtypes.float4_e2m1fn)
_SMALL_INTEGERS: frozenset[DType] = frozenset(
    np.dtype(t) for t in (ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.uint4)
)
_FLOATING = FLOATS | FLOAT8 | {_FLOAT4}


def _cast_kind(dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
    source = dtypes[0]
    if source is None or not attributes.get("saturate", 1):
        return Kind.GENERAL
    _, total = _conversion(source, ir.DataType(attributes["to"]).numpy())
    return Kind.ELEMENTWISE if total else Kind.GENERAL


@kernel("Cast", since=6, kind=_cast_kind)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """The elements of ``x`` in the dtype with ONNX number ``to``.

    Floats are truncated toward zero to integers, integers wrap, everything but 0 is true.
    float64 goes to 16 bit floats by way of float32, rounding twice. Overflowing float8 saturates.
    """
    return _cast(x, _numpy_dtype(to), saturate)


@functools.cache
def _numpy_dtype(number: int) -> DType:
    return ir.DataType(number).numpy()


@kernel("CastLike", since=15)
def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """The elements of ``x`` in the dtype of ``like``; see :func:`cast`."""
    return _cast(x, like.dtype, saturate)


def _cast(x: Array, target: DType, saturate: int) -> Array:
    if x.dtype == target:
        return x
    convert, _ = _conversion(x.dtype, target)
    if convert is None or (not saturate and target in FLOAT8):
        raise NotExact(f"no exact cast from {x.dtype.name} to {target.name}")
    return convert(x)


@functools.cache
def _conversion(source: DType, target: DType) -> tuple[Converter | None, bool]:
    """The function that casts exactly, and whether it does so whatever the data."""
    if source == target:
        return _plain(target), source != STRING
    if source.kind in "OSUT" or target in (STRING, _POWERS_OF_TWO):
        return None, False
    if source == _POWERS_OF_TWO:
        return (_plain(target), True) if target in FLOATS else (None, False)
    if target == BOOL:
        # onnxruntime looks at the bits of a float8: -0.0 is true.
        return (None, False) if source in FLOAT8 else (_plain(target), True)
    if target in FLOAT8:
        return _saturating(target), True
    if target == _FLOAT4:
        return (None, False) if source == FLOAT64 else (_to_float4, False)
    if target in _SMALL_INTEGERS and source in _FLOATING:
        return None, False  # onnxruntime rounds here where ONNX truncates
    if target in INTEGERS and source in _FLOATING:
        return _truncating(target), False
    return _by_way_of(_stepping_stone(source, target), target), True


def _stepping_stone(source: DType, target: DType) -> DType | None:
    if source == FLOAT64 and target in (FLOAT16, BFLOAT16):
        return FLOAT32  # as onnxruntime: rounded twice
    if source == _FLOAT4:
        return FLOAT32
    if _SMALL_INTEGERS & {source, target}:
        if source in INTEGERS:
            return np.dtype(np.int8) if source != np.dtype(np.int8) else None
        return np.dtype(np.int8)
    return None


def _plain(target: DType) -> Converter:
    return lambda x: np.asarray(x.astype(target))


def _by_way_of(middle: DType | None, target: DType) -> Converter:
    if middle is None:
        return _plain(target)
    return lambda x: np.asarray(x.astype(middle).astype(target))


def _truncating(target: DType) -> Converter:
    # Bounds as float64: the upper one is exclusive, since the greatest int64 is no float.
    info = np.iinfo(target)
    low, high = float(info.min), float(int(info.max) + 1)

    def convert(x: Array) -> Array:
        check_readable(x)
        check_allocatable(x.shape, target)
        if x.dtype not in (FLOAT32, FLOAT64):
            x = x.astype(FLOAT32)
        if x.size:
            least, greatest = float(x.min()), float(x.max())
            if not (low - 1 < least and greatest < high) or (low - 1 == low and least < low):
                raise NotExact(f"a value is NaN or out of range for {target.name}")
        return np.asarray(x.astype(target))

    return convert


def _saturating(target: DType) -> Converter:
    finfo: Any = ml_dtypes.finfo
    greatest = np.float32(finfo(target).max)

    def convert(x: Array) -> Array:
        return np.asarray(np.clip(x.astype(FLOAT32), -greatest, greatest).astype(target))

    return convert


def _to_float4(x: Array) -> Array:
    check_readable(x)
    check_allocatable(x.shape, _FLOAT4)
    x = x.astype(FLOAT32)
    if np.isnan(x).any():
        raise NotExact("float4 has no NaN")
    return np.asarray(np.clip(x, -6, 6).astype(_FLOAT4))
