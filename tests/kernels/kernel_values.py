"""Edge values and random operands for every dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np

INTEGERS = [np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)]
FLOATS = [np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)]
NUMBERS = INTEGERS + FLOATS
FLOAT8 = [
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
]
SMALL = [np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)]
BOOL = np.dtype(bool)
STRING = np.dtype(object)
EVERY = [BOOL, *NUMBERS, *FLOAT8, *SMALL, np.dtype(ml_dtypes.float4_e2m1fn), STRING]


def edges(dtype: np.dtype) -> np.ndarray:
    """The values at which an implementation is most likely to be wrong."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        wanted = [0, 1, 2, 3, 5, 7, -1, -2, -3, -7, info.min, info.min + 1, info.max, info.max - 1]
        return np.array([v for v in wanted if info.min <= v <= info.max], dtype)
    if dtype in FLOATS:
        info = ml_dtypes.finfo(dtype)
        tiny = [float(info.smallest_subnormal), float(info.tiny), float(info.max)]
        plain = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 0.3, 7.0, 1e4, np.inf, np.nan, *tiny]
        return np.array(plain + [-v for v in plain], np.float64).astype(dtype)
    raise AssertionError(dtype)


def random_bits(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Random bit patterns: all kinds of NaN and subnormals among them."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == STRING:
        pool = np.array(["", "a", "b", "ab", "ä", "long enough not to be stored inline"], object)
        return pool[rng.integers(0, len(pool), shape)] if shape else np.array("ab", object)
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.name.startswith(("int2", "int4")) and dtype.itemsize == 1 and dtype.kind == "V":
        half = 2 if dtype.name == "int2" else 8
        return rng.integers(-half, half, shape).astype(np.int8).astype(dtype)
    if dtype.name in ("uint2", "uint4", "float4_e2m1fn"):
        top = 4 if dtype.name == "uint2" else 16
        return np.asarray(rng.integers(0, top, shape), np.uint8).view(dtype)
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def moderate(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Values of ordinary size."""
    if dtype in FLOATS:
        return np.asarray(rng.standard_normal(shape) * 10).astype(dtype)
    if dtype in INTEGERS:
        low = 0 if dtype.kind == "u" else -100
        return np.asarray(rng.integers(low, 100, shape)).astype(dtype)
    return random_bits(rng, dtype, shape)


def strided(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The same values behind strides that are not C-contiguous, read-only."""
    wide = np.empty([2 * d + 1 for d in x.shape], x.dtype)
    view = wide[(*(slice(None, -1, 2) for _ in x.shape), ...)]
    view[...] = x
    view.flags.writeable = False
    return view


def fill(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array of that shape with the first elements of ``x``."""
    count = int(np.prod(shape, dtype=np.int64))
    return np.asarray(x[:count]).reshape(shape)
