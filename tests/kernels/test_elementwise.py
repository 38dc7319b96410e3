"""Arithmetic, comparison and logical ops: edge values and random bits."""

from __future__ import annotations

import kernel_check as check
import kernel_values as values
import numpy as np
import pytest
from kernel_check import compare, kernel_results

from onnxfold.kernels import Kind, NotExact, Unfoldable, find

SIGNED = [d for d in values.NUMBERS if d.kind != "u"]
# What each op takes, by ONNX's schemas; a kernel computes all of it and nothing else.
UNARY = {
    **dict.fromkeys(["Neg"], SIGNED),
    **dict.fromkeys(["Abs"], values.NUMBERS),
    **dict.fromkeys(["Sqrt", "Reciprocal", "Floor", "Ceil"], values.FLOATS),
    "Not": [values.BOOL],
}
BINARY = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Div", "Max", "Min"], values.NUMBERS),
    **dict.fromkeys(["Less", "Greater", "LessOrEqual", "GreaterOrEqual"], values.NUMBERS),
    "Equal": [values.BOOL, *values.NUMBERS],
    **{op: [values.BOOL] for op in ("And", "Or")},
}
DTYPES = [values.BOOL, *values.NUMBERS]


def pairs(ops):
    return [pytest.param(op, d, id=f"{op}-{d}") for op, dtypes in ops.items() for d in dtypes]


SHAPES = [
    ((), ()),
    ((3,), ()),
    ((0,), (1,)),
    ((2, 3), (3,)),
    ((2, 1, 3), (4, 1)),
    ((5,), (2, 3, 1)),
    ((0, 3), (3,)),
]


def operand(dtype, seed, count=4000):
    rng = np.random.default_rng(seed)
    edge = values.edges(dtype)
    return np.concatenate(
        [
            np.resize(edge, edge.size * 7 + 3),  # every edge at several places of a SIMD block
            values.random_bits(rng, dtype, (count,)),
            values.moderate(rng, dtype, (count,)),
        ]
    )


@pytest.mark.parametrize("op_type", [*UNARY, *BINARY])
def test_other_dtypes_are_refused(op_type):
    count, taken = (1, UNARY[op_type]) if op_type in UNARY else (2, BINARY[op_type])
    for dtype in DTYPES:
        if dtype not in taken:
            with pytest.raises(NotExact):
                kernel_results(op_type, [np.ones(2, dtype)] * count)


@pytest.mark.parametrize(("op_type", "dtype"), pairs(UNARY))
def test_unary(op_type, dtype):
    x = operand(dtype, 1)
    outcome = compare(op_type, [x])
    compare(op_type, [x[:1].reshape(())])
    compare(op_type, [x[:0].reshape(0, 3)])
    compare(op_type, [values.strided(np.random.default_rng(0), x[:600].reshape(20, 30))])
    assert outcome != "not exact"


@pytest.mark.parametrize(("op_type", "dtype"), pairs(BINARY))
def test_binary(op_type, dtype):
    edge = values.edges(dtype)
    a, b = edge[:, None], edge
    if op_type == "Div" and dtype.kind in "iu":
        b = b[b != 0]
        a = a[1:] if dtype.kind == "u" else a[a[:, 0] != np.iinfo(dtype).min]
    exact = [compare(op_type, [a, b])]
    rng = np.random.default_rng(2)
    x, y = operand(dtype, 3), operand(dtype, 4)
    if op_type == "Div" and dtype.kind in "iu":
        y[(y == 0) | (y == y.dtype.type(-1) if dtype.kind == "i" else y == 0)] = 3
    exact.append(compare(op_type, [x, rng.permutation(y)]))
    for s, t in SHAPES:
        u = values.fill(y[-500:], s)
        v = values.fill(y[-500:], t)
        if not (op_type == "Div" and (v == 0).any()):
            compare(op_type, [u, v])
            compare(op_type, [values.strided(rng, u), values.strided(rng, v)])
    if op_type not in ("Max", "Min"):
        assert "not exact" not in exact


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("dtype", values.FLOATS, ids=str)
def test_extremes_of_floats_are_exact_unless_zeros_differ_in_sign(op_type, dtype):
    x, y = operand(dtype, 5), operand(dtype, 6)
    x, y = np.where(x == 0, x.dtype.type(0), x), np.where(y == 0, y.dtype.type(0), y)
    assert compare(op_type, [x, y, x[::-1], y[0]]) in ("same", "unsupported")
    assert compare(op_type, [x]) in ("same", "unsupported")
    zeros = np.array([0.0, -0.0], dtype)
    assert compare(op_type, [zeros, zeros[::-1]]) == "not exact"
    assert compare(op_type, [zeros, zeros[:1] - 1]) != "not exact" or op_type == "Max"


@pytest.mark.parametrize("dtype", values.NUMBERS, ids=str)
@pytest.mark.parametrize("opset", [11, 12, 13])
def test_clip(dtype, opset):
    x = operand(dtype, 7)
    limits = [None, *(v.reshape(()) for v in values.edges(dtype))]
    for low in limits[::2]:
        for high in limits[::3]:
            assert compare("Clip", [x[:300], low, high], opset=opset) != "not exact"
    compare("Clip", [x[:100].reshape(2, -1), limits[2], limits[3]], opset=opset)


@pytest.mark.parametrize("dtype", values.INTEGERS, ids=str)
def test_mod(dtype):
    a, b = operand(dtype, 9), operand(dtype, 10)
    b = np.where((b == 0) | ((b == -1) if dtype.kind == "i" else False), b.dtype.type(3), b)
    assert compare("Mod", [a, b]) == "same"
    assert compare("Mod", [a, b], {"fmod": 1}) == "not exact"


@pytest.mark.parametrize("dtype", values.INTEGERS, ids=str)
@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_integer_division_that_traps_stays_in_the_model(op_type, dtype):
    one = np.ones(3, dtype)
    with pytest.raises(Unfoldable, match="zero"):
        kernel_results(op_type, [one, np.array([1, 0, 1], dtype)])
    if dtype.kind == "i":
        with pytest.raises(Unfoldable, match="overflow"):
            kernel_results(op_type, [one * np.iinfo(dtype).min, -one])


@pytest.mark.parametrize("dtype", values.EVERY, ids=str)
def test_where(dtype):
    rng = np.random.default_rng(13)
    for c, s, t in [((4, 1), (3,), (4, 3)), ((), (2, 0), ()), ((5, 7), (5, 7), (1,)), ((), (), ())]:
        condition = values.random_bits(rng, values.BOOL, c)
        x, y = values.random_bits(rng, dtype, s), values.random_bits(rng, dtype, t)
        assert compare("Where", [condition, x, y]) != "not exact"


def test_strings_are_equal_as_bytes():
    a = np.array(["a", b"a", "ä", b"\xff", ""], object)
    b = np.array([b"a", "b", "ä".encode(), b"\xff", " "], object)
    (result,) = kernel_results("Equal", [a, b])
    assert result.tolist() == [True, False, True, True, False]
    x = values.random_bits(np.random.default_rng(0), values.STRING, (6, 1))
    assert compare("Equal", [x, x.reshape(6)]) == "same"


def test_each_opset_form():
    x, y = np.float32([1.5, -2.5]), np.float32([0.5])
    for op_type, opsets in {
        "Add": (7, 13, 14),
        "Equal": (11, 13, 19),
        "Max": (8, 12, 13),
    }.items():
        for opset in opsets:
            assert compare(op_type, [x, y], opset=opset) == "same", (op_type, opset)
    for op_type in ("Abs", "Neg", "Sqrt", "Floor", "Ceil", "Reciprocal"):
        assert compare(op_type, [x], opset=6) == "same", op_type


ALL_ELEMENTWISE = [*UNARY, *BINARY]


@pytest.mark.parametrize("op_type", ALL_ELEMENTWISE)
def test_an_elementwise_kernel_gives_the_same_bits_on_tiles(op_type):
    found = find(op_type, check.OPSET)
    for dtype in DTYPES:
        count = 1 if op_type in UNARY else 2
        if found.kind_for([dtype] * count, {}) is not Kind.ELEMENTWISE:
            continue
        operands = [operand(dtype, s, 100) for s in range(count)]
        (whole,) = kernel_results(op_type, operands)
        for start, stop in ((0, 1), (1, 3), (5, 40), (40, 300)):
            (tile,) = kernel_results(op_type, [x[start:stop] for x in operands])
            check.assert_identical(tile, whole[start:stop], f"{op_type} {dtype}")


def test_kind_follows_the_dtypes():
    div, f32, i32 = find("Div", 14), np.dtype(np.float32), np.dtype(np.int32)
    assert div.kind_for([f32, f32], {}) is Kind.ELEMENTWISE
    assert div.kind_for([i32, i32], {}) is Kind.GENERAL
    assert find("Max", 13).kind_for([i32, i32], {}) is Kind.ELEMENTWISE
    assert find("Max", 13).kind_for([f32, f32], {}) is Kind.GENERAL
    assert find("Add", 14).kind_for([values.FLOAT8[0]] * 2, {}) is Kind.GENERAL
    assert div.kind_for([f32, f32], {"unheard_of": 1}) is Kind.GENERAL
