from typing import Any

import numpy as np
from onnx import TensorProto as T
from onnx import helper

Array = np.ndarray[Any, Any]

FLOATS = (T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16)
SIGNED = (T.INT8, T.INT16, T.INT32, T.INT64)
UNSIGNED = (T.UINT8, T.UINT16, T.UINT32, T.UINT64)
INTS = SIGNED + UNSIGNED
EIGHTS = (T.FLOAT8E4M3FN, T.FLOAT8E4M3FNUZ, T.FLOAT8E5M2, T.FLOAT8E5M2FNUZ)
PACKED = (T.INT4, T.UINT4, T.INT2, T.UINT2, T.FLOAT4E2M1)
ALL = (*FLOATS, *INTS, T.BOOL, T.STRING, *EIGHTS, *PACKED)
COMMON = (
    *[T.FLOAT] * 10,
    *[T.INT64] * 5,
    *[T.INT32] * 2,
    *[T.DOUBLE] * 2,
    *[T.FLOAT16, T.BOOL] * 2,
    *INTS,
    T.BFLOAT16,
)
"""Element types of random values. A type is repeated if it should be chosen more often."""

_BY_TEXT = {
    f"tensor({name})": elem
    for name, elem in {
        "float": T.FLOAT,
        "double": T.DOUBLE,
        **{n.lower(): number for n, number in T.DataType.items() if number},
    }.items()
    if name not in ("float32", "float64")
}
WORDS = ["", "a", "B", "ab", "A b", "x" * 9, "7", "-1.5", "ä", "nan", "0"]


def elem_of(text: str) -> int | None:
    """Return the element type for a text such as ``tensor(float)``, or None for other texts."""
    return _BY_TEXT.get(text)


def dtype_of(elem: int) -> np.dtype[Any]:
    """Return the dtype of NumPy or ml_dtypes for an element type. Strings have the dtype object."""
    return np.dtype(object) if elem == T.STRING else helper.tensor_dtype_to_np_dtype(elem)


def random_array(rng: np.random.Generator, elem: int, shape: Any, hostile: float) -> Array:
    """Return random elements.

    Args:
        rng: Source of the random numbers.
        elem: The element type.
        shape: The sizes.
        hostile: Share of NaN, infinities and other extreme numbers, from 0 to 1. It has no effect
            on strings, booleans and packed types.
    """
    shape = tuple(int(s) for s in shape)
    if elem == T.STRING:
        return np.asarray(rng.choice(np.array(WORDS, object), shape), object)
    if elem == T.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    dtype = dtype_of(elem)
    strange = rng.random(shape) < hostile
    if elem in INTS:
        info = np.iinfo(dtype)
        low = 0 if info.min == 0 else -4
        extremes = [info.min, info.max, info.max - 1, info.min + 1, 1 << (info.bits - 2), 0, 1]
        if info.bits == 64:
            extremes += [2**53 + 1, 2**24 + 1, 2**31, 2**62 + 3]
        plain = rng.integers(low, 6, shape)
        special = np.array(extremes, dtype)[rng.integers(0, len(extremes), shape)]
        return np.where(strange, special, plain.astype(dtype)).astype(dtype)
    if elem in PACKED:
        low = 0 if elem in (T.UINT4, T.UINT2, T.FLOAT4E2M1) else (-8 if elem == T.INT4 else -2)
        high = {T.INT4: 8, T.UINT4: 16, T.INT2: 2, T.UINT2: 4}.get(elem, 4)
        return rng.integers(low, high, shape).astype(np.float32).astype(dtype)
    style = rng.integers(0, 3)
    if style == 0:
        plain_floats = rng.integers(-3, 4, shape).astype(np.float64)
    elif style == 1:
        plain_floats = rng.choice([0.0, -0.0, 1.0, 2.0, 0.5, -1.0, 0.25, 1024.0], shape)
    else:
        plain_floats = rng.standard_normal(shape) * 3
    tiny = 1e-310 if elem == T.DOUBLE else 1e-40 if dtype.itemsize >= 4 else 6e-8
    large = 1e300 if elem == T.DOUBLE else 3e38 if elem == T.FLOAT else 65504.0
    specials = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, large, -large, 16777217.0, 2**53]
    with np.errstate(all="ignore"):
        mixed = np.where(strange, rng.choice(specials, shape), plain_floats)
        if elem in EIGHTS:
            mixed = np.nan_to_num(mixed, nan=0.0, posinf=8.0, neginf=-8.0).clip(-16, 16)
            return mixed.astype(np.float32).astype(dtype)
        return np.asarray(mixed).astype(dtype)
