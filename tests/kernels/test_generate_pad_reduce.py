"""Pad, the generators, and reductions that do not depend on the order."""

from __future__ import annotations

import itertools

import kernel_values as values
import numpy as np
import pytest
from kernel_check import compare, kernel_results

from onnxfold.kernels import NotExact, Unfoldable

RNG = np.random.default_rng(0)


def i64(*v):
    return np.array(v, np.int64)


def numbered(shape, dtype=np.int64):
    return np.arange(int(np.prod(shape, dtype=np.int64))).astype(dtype).reshape(shape)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (1, 5)])
def test_pad(mode, shape):
    x = numbered(shape, np.float32)
    exact = 0
    for _ in range(40):
        pads = RNG.integers(-1, 4, 2 * len(shape))
        widths = list(zip(shape, pads, pads[len(shape) :], strict=False))
        if any(d + a + b < 0 for d, a, b in widths):
            continue
        is_emptied = any(d + min(a, 0) + min(b, 0) <= 0 for d, a, b in widths)
        outcome = compare("Pad", [x, pads], {"mode": mode})
        exact += outcome == "same"
        compare("Pad", [x, np.abs(pads)], {"mode": mode})
        if mode == "constant":
            assert outcome == ("not exact" if is_emptied else "same")
            assert compare("Pad", [x, pads, np.float32(7)]) == outcome
        if mode != "wrap":
            compare("Pad", [x], {"pads": pads.tolist(), "mode": mode}, opset=10)
            compare("Pad", [x, pads], {"mode": mode}, opset=13)
    assert exact or (mode, shape) == ("reflect", (1, 5))


def test_pad_axes_and_dtypes():
    x = numbered((2, 3, 4), np.float32)
    assert compare("Pad", [x, i64(1, 2), None, i64(-1)]) == "same"
    assert compare("Pad", [x, i64(1, 2, 0, 1), None, i64(2, 0)], {"mode": "edge"}) == "same"
    assert compare("Pad", [x], {"pads": [0, 1, 0, 0, 1, 2], "value": 2.5}, opset=2) == "same"
    for dtype in values.EVERY:
        data = values.random_bits(RNG, dtype, (2, 3))
        assert compare("Pad", [data, i64(1, 0, 0, 2)]) in ("same", "unsupported")
    with pytest.raises(Unfoldable):
        kernel_results("Pad", [x, i64(0, 0, -3, 0, 0, -2)])


def test_constant_of_shape():
    assert compare("ConstantOfShape", [i64(2, 3)]) == "same"
    assert compare("ConstantOfShape", [i64()]) == "same"
    assert compare("ConstantOfShape", [i64(0, 3)]) == "same"
    for dtype in [values.BOOL, *values.NUMBERS]:
        value = values.edges(dtype)[1:2]
        assert compare("ConstantOfShape", [i64(2)], {"value": value}) in ("same", "unsupported")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
def test_range(dtype):
    for start, limit, delta in itertools.product((0, 1, -3, 7), (0, 10, -10, 100), (1, -2, 3, 7)):
        scalars = [np.array(v, dtype) for v in (start, limit, delta)]
        assert compare("Range", scalars) == "same"
    if dtype in (np.float32, np.float64):
        for _ in range(60):
            start, limit = RNG.standard_normal(2) * 10.0 ** RNG.integers(-3, 6)
            delta = (limit - start) / RNG.integers(1, 3000) * RNG.uniform(0.5, 1.5)
            assert compare("Range", [np.array(v, dtype) for v in (start, limit, delta)]) == "same"
    with pytest.raises(Unfoldable):
        kernel_results("Range", [np.array(v, dtype) for v in (0, 1, 0)])


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper):
    for shape in ((3, 4), (2, 4, 3), (0, 3), (3, 3)):
        for dtype in (np.float32, np.float64, np.int64, bool):
            x = (numbered(shape) + 1).astype(dtype)
            assert compare("Trilu", [x], {"upper": upper}) == "same"
            for k in (-9, -2, -1, 0, 1, 3, 9):
                assert compare("Trilu", [x, i64(k)[0:1].reshape(())], {"upper": upper}) == "same"


SUMS = ["ReduceSum", "ReduceProd"]
EXTREMES = ["ReduceMax", "ReduceMin"]


@pytest.mark.parametrize("op_type", SUMS + EXTREMES)
@pytest.mark.parametrize("dtype", values.NUMBERS, ids=str)
def test_reductions(op_type, dtype):
    x = values.random_bits(RNG, dtype, (3, 4, 5))
    if dtype in values.INTEGERS and op_type in SUMS:
        compare(op_type, [x])
        assert dtype.itemsize < 4 or compare(op_type, [x | x.dtype.type(1)]) == "not exact"
        x = RNG.integers(0, 3, (3, 4, 5)).astype(dtype)
        x[x == 0] = 1 if op_type == "ReduceProd" else x.dtype.type(3)
        x[0, 2:, 3:] = 1
        x[1:] = 1 if op_type == "ReduceProd" else 0
    if dtype in values.FLOATS:
        x = np.nan_to_num(x.astype(np.float64)).astype(dtype)
        x = np.where(x == 0, np.ones((), dtype), x)
    floats = dtype in values.FLOATS
    for axes in (None, [0], [-1], [0, 2], [1, 0, 2]):
        for keepdims in (0, 1):
            inputs = [x] if axes is None else [x, i64(*axes)]
            outcome = compare(op_type, inputs, {"keepdims": keepdims})
            narrow = dtype in values.INTEGERS and dtype.itemsize < 4 and op_type in SUMS
            assert (outcome == "not exact") == (floats and op_type in SUMS) or narrow
            attributes = {"keepdims": keepdims} | ({} if axes is None else {"axes": axes})
            for opset in (8, 11, 12):
                compare(op_type, [x], attributes, opset=opset)
    compare(op_type, [x, i64()], {"noop_with_empty_axes": 1})
    compare(op_type, [x, i64()], {})
    compare(op_type, [x[0, 0, 0].reshape(())], {})
    compare(op_type, [x[:0], i64(1)], {})
    compare(op_type, [x.transpose(2, 0, 1)[:, ::-1], i64(1)], {})


def test_reductions_of_nothing():
    for op_type in SUMS:
        assert compare(op_type, [np.zeros((2, 0), np.int32), i64(1)]) == "same"
    with pytest.raises(NotExact):
        kernel_results("ReduceMax", [np.zeros((2, 0), np.int32), i64(1)])


@pytest.mark.parametrize("op_type", SUMS + EXTREMES)
def test_negative_axes_of_nothing_are_onnxruntimes(op_type):
    """It reduces along none of them there, against the standard."""
    for shape in ((2, 0), (0, 2)):
        with pytest.raises(NotExact):
            kernel_results(op_type, [np.zeros(shape, np.int32), i64(-1)])


def test_order_of_floats():
    for op_type in EXTREMES:
        for special in ([np.nan, 1], [0.0, -0.0]):
            with pytest.raises(NotExact):
                kernel_results(op_type, [np.float32(special)])
    flags = np.array([[True, False], [True, True]])
    for op_type in EXTREMES:
        assert compare(op_type, [flags, i64(1)]) == "same"
