"""Test the Cast kernel for all pairs of dtypes.

The operands have all bit patterns of a narrow dtype, or random bits, edge values and midpoints.
"""

import functools

import kernel_values as values
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from kernel_rows import compare, kernel_of, kernel_results

from onnxfold.ops import Kind, NotExact

POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)
DTYPES = [d for d in values.EVERY if d != values.STRING] + [POWERS]
NARROW = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), *values.FLOAT8, values.FLOAT4]


@functools.cache
def cast_inputs(dtype: np.dtype) -> np.ndarray:
    """Return every bit pattern of a dtype with at most 16 bits; error-prone values of others."""
    if dtype.itemsize <= 2:
        return values.patterns(dtype)
    rng = np.random.default_rng(0)
    parts = [values.random_bits(rng, dtype, (20_000,)), values.edges(dtype)]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [
            (1 << s) + (1 << max(s - t, 0)) + d
            for s in range(64)
            for t in (8, 9, 11, 12, 24, 25, 53, 54)
            for d in (-1, 0, 1)
        ]
        near += [-v for v in near]
        parts.append(np.array([v for v in near if info.min <= v <= info.max], dtype))
    else:
        with np.errstate(all="ignore"):
            parts += [_around(narrow, dtype) for narrow in NARROW]
            scaled = rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 20, 5000)
            parts.append(scaled.astype(dtype))
    return np.concatenate(parts)


def _around(narrow: np.dtype, dtype: np.dtype) -> np.ndarray:
    """Return values of a narrow dtype, the midpoints between them, and the neighbors of midpoints.

    The result and the neighbors have the other ``dtype``.
    """
    if narrow.itemsize == 2:
        raw = np.arange(0, 1 << 16, 7, dtype=np.uint16)
        here = raw.view(narrow)
        there = (raw + np.uint16(1)).view(narrow)
    else:
        raw = values.patterns(narrow).view(np.uint8)
        here = raw.view(narrow)
        there = np.roll(raw, -1).view(narrow)
    a = here.astype(np.float64)
    b = there.astype(np.float64)
    middle = ((a + b) / 2).astype(dtype)
    up = np.nextafter(middle, dtype.type(np.inf))
    down = np.nextafter(middle, dtype.type(-np.inf))
    return np.concatenate([a.astype(dtype), middle, up, down])


def accepted_values(x: np.ndarray, to: int) -> np.ndarray:
    """Return the elements that the kernel does not leave to onnxruntime because of their values.

    A cast from a float to an integer dtype is exact only for elements in the range of the integers.
    """
    target = ir.DataType(to).numpy()
    if target in values.INTEGERS and x.dtype.name.startswith(("float", "bfloat")):
        wide = x.astype(np.float64)
        info = np.iinfo(target)
        inside = (wide > float(info.min) - 1) & (wide < float(int(info.max) + 1))
        return x[inside & (wide >= float(info.min)) | (inside & (info.bits < 50))]
    return x


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_cast(source):
    x = cast_inputs(source)
    for target in DTYPES:
        to = int(ir.DataType.from_numpy(target))
        opset = 25 if {"int2", "uint2", "float8_e8m0fnu"} & {source.name, target.name} else 23
        outcome = compare("Cast", [accepted_values(x, to)], {"to": to}, opset=opset)
        kind = kernel_of("Cast", opset).kind_for([source], {"to": to})
        if kind is Kind.ELEMENTWISE:
            assert outcome != "declined", target


def test_casts_between_common_types_are_exact():
    plain = [values.BOOL, *values.NUMBERS]
    for source in plain:
        for target in plain:
            to = int(ir.DataType.from_numpy(target))
            x = values.moderate(np.random.default_rng(0), source, (50,))
            if target.kind == "u" and source.kind not in "ub":
                x = np.abs(x)
            assert compare("Cast", [x], {"to": to}) == "same", (source, target)


@pytest.mark.parametrize("target", values.INTEGERS, ids=str)
@pytest.mark.parametrize("source", values.FLOATS, ids=str)
def test_floats_out_of_the_integer_range_are_left_to_onnxruntime(source, target):
    to = int(ir.DataType.from_numpy(target))
    info = np.iinfo(target)
    outside = [np.nan, np.inf, -np.inf]
    with np.errstate(over="ignore"):
        limits = np.array([float(int(info.max) + 1), float(info.min) * 2 - 3]).astype(source)
    outside += [v for v in limits.astype(float) if not info.min - 1 < v < int(info.max) + 1]
    for value in outside:
        with pytest.raises(NotExact):
            kernel_results("Cast", [np.array([0, value], source)], {"to": to})
    assert kernel_results("Cast", [np.zeros((0, 2), source)], {"to": to})[0].shape == (0, 2)


def test_strings_are_left_to_onnxruntime():
    with pytest.raises(NotExact):
        kernel_results("Cast", [np.float32([1])], {"to": int(ir.DataType.STRING)})
    with pytest.raises(NotExact):
        kernel_results("Cast", [np.array(["1"], object)], {"to": int(ir.DataType.FLOAT)})
    x = np.array(["1"], object)
    assert kernel_results("Cast", [x], {"to": int(ir.DataType.STRING)})[0].tolist() == ["1"]
