import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

INTEGERS = [np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)]
FLOATS = [np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)]
NUMBERS = INTEGERS + FLOATS
FLOAT8 = [
    np.dtype(getattr(ml_dtypes, f"float8_{name}"))
    for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
]
FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)
WIDTHS = {np.dtype(getattr(ml_dtypes, name)): int(name[-1]) for name in ("int4", "uint4")}
WIDTHS |= {np.dtype(getattr(ml_dtypes, name)): int(name[-1]) for name in ("int2", "uint2")}
WIDTHS |= {FLOAT4: 4}
"""The number of bits of an element, for each dtype whose elements are smaller than a byte."""
BOOL = np.dtype(bool)
STRING = np.dtype(object)
EVERY = [BOOL, *NUMBERS, *FLOAT8, *WIDTHS, STRING]


def supported_dtypes(op_type: str, opset: int) -> list[np.dtype]:
    """Return the dtypes in `EVERY` that the schema of an op allows for the first operand."""
    first = onnx.defs.get_schema(op_type, opset).inputs[0]
    names = {f"tensor({ir.DataType.from_numpy(d).name.lower()})": d for d in EVERY}
    return [dtype for name, dtype in names.items() if name in first.types]


def edges(dtype: np.dtype) -> np.ndarray:
    """Return values for which an implementation is likely to be wrong.

    For a dtype that is neither in `INTEGERS` nor in `FLOATS`, return eight random elements.
    """
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        numbers = [0, 1, 2, 3, 5, 7, -1, -2, -3, -7, info.min, info.min + 1, info.max, info.max - 1]
        return np.array([v for v in numbers if info.min <= v <= info.max], dtype)
    if dtype in FLOATS:
        info = ml_dtypes.finfo(dtype)
        tiny = [float(info.smallest_subnormal), float(info.tiny), float(info.max)]
        plain = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 0.3, 7.0, 1e4, np.inf, np.nan, *tiny]
        return np.array(plain + [-v for v in plain], np.float64).astype(dtype)
    return random_bits(np.random.default_rng(0), dtype, (8,))


def random_bits(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return random elements.

    Numbers have random bit patterns, so floats may be subnormal or NaN with any payload.
    """
    if dtype == STRING:
        pool = np.array(["", "a", "b", "ab", "ä", "long enough not to be stored inline"], object)
        return np.asarray(pool[rng.integers(0, len(pool), shape or 1)]).reshape(shape)
    if dtype == BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    count = int(np.prod(shape, dtype=np.int64))
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if dtype in WIDTHS:
        raw = patterns(dtype)[raw % (1 << WIDTHS[dtype])].view(np.uint8)
    return raw.view(dtype).reshape(shape)


def patterns(dtype: np.dtype) -> np.ndarray:
    """Return every bit pattern of a type with at most 16 bits."""
    if dtype == BOOL:
        return np.array([False, True])
    width = WIDTHS.get(dtype, 8 * dtype.itemsize)
    raw = np.arange(1 << width, dtype=f"u{dtype.itemsize}")
    if dtype.name in ("int2", "int4"):  # ml_dtypes sign-extends each element to 8 bits
        sign = np.uint8(1 << (width - 1))
        raw = (raw ^ sign) - sign
    return raw.view(dtype)


def moderate(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype in FLOATS:
        return np.asarray(rng.standard_normal(shape) * 10).astype(dtype)
    if dtype in INTEGERS:
        low = 0 if dtype.kind == "u" else -100
        return np.asarray(rng.integers(low, 100, shape)).astype(dtype)
    return random_bits(rng, dtype, shape)


def operand(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return edge values, moderate values and random bits in random order.

    If the shape has more than 1,000 elements, the result is one-dimensional, has more elements than
    the shape, and contains each edge value at least seven times.
    """
    count = int(np.prod(shape, dtype=np.int64))
    parts = [edges(dtype), moderate(rng, dtype, (count,)), random_bits(rng, dtype, (count,))]
    if count > 1000:  # each edge value at several positions of a vector register
        parts[0] = np.resize(parts[0], parts[0].size * 7 + 3)
        return np.asarray(rng.permutation(np.concatenate(parts)))
    return np.asarray(rng.permutation(np.concatenate(parts)))[:count].reshape(shape)


def strided(x: np.ndarray) -> np.ndarray:
    """Return the same values in an array that is not C-contiguous."""
    wide = np.empty([2 * d + 1 for d in x.shape], x.dtype)
    view = wide[(*(slice(None, -1, 2) for _ in x.shape), ...)]
    view[...] = x
    return view
