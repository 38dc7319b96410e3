"""The rules of rules/casts.py."""

import numpy as np
import onnx_ir as ir
import pytest
from certify import certify, graph, refuse
from onnxfold.rules import casts as rules

FLOAT, I8, I32, I64, BOOL, F16, F64, U8 = 1, 3, 6, 7, 9, 10, 11, 2
NAMES = {1: "float", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "double"}
NAMES[U8] = "uint8"


def chain(first, between, last):
    return graph(
        f"{NAMES[first]}[N,3] x",
        f"t = Cast<to={between}>(x)",
        f"y = Cast<to={last}>(t)",
    )


@pytest.mark.parametrize(
    ("first", "between", "last"),
    [
        (I8, I32, I64),
        (I32, I64, I32),
        (I64, I32, I8),
        (I64, I32, U8),
        (I32, I64, FLOAT),
        (U8, I32, FLOAT),
        (I8, F16, FLOAT),
        (I32, F64, I64),
        (F16, FLOAT, F64),
        (F16, FLOAT, F16),
        (F16, FLOAT, I32),
        (F16, FLOAT, BOOL),
        (FLOAT, F64, FLOAT),
        (FLOAT, F64, F16),
        (BOOL, I64, BOOL),
        (BOOL, FLOAT, BOOL),
        (BOOL, FLOAT, I64),
        (BOOL, I32, FLOAT),
    ],
)
def test_cast_of_cast(first, between, last):
    certify(rules.cast_of_cast, chain(first, between, last), times=1)


@pytest.mark.parametrize(
    ("first", "between", "last"),
    [
        (I64, FLOAT, I64),
        (FLOAT, F16, FLOAT),
        (FLOAT, I64, FLOAT),
        (FLOAT, BOOL, FLOAT),
        (I64, BOOL, I64),
        (I64, I32, I64),
        (I64, I32, FLOAT),
        (I32, F64, I8),
        (I8, U8, I32),
        (F64, FLOAT, F64),
        (FLOAT, F64, I32),
    ],
)
def test_cast_of_cast_that_loses(first, between, last):
    refuse(rules.cast_of_cast, chain(first, between, last))


def test_cast_with_arithmetic_between():
    refuse(
        rules.cast_of_cast,
        graph(
            "int64[N] x",
            "f = Cast<to=1>(x)",
            "m = Mul(f, h)",
            "y = Cast<to=7>(m)",
            h=np.float32(0.5),
        ),
    )


def test_holds_all_of():
    d = ir.DataType
    assert rules.holds_all_of(d.FLOAT, d.BFLOAT16)
    assert not rules.holds_all_of(d.FLOAT16, d.BFLOAT16)
    assert not rules.holds_all_of(d.FLOAT, d.INT32)
    assert rules.holds_all_of(d.DOUBLE, d.UINT32)
    assert not rules.holds_all_of(d.INT32, d.UINT32)
    assert not rules.holds_all_of(d.UINT64, d.INT8)
    assert not rules.is_superfluous(d.INT8, d.FLOAT, d.FLOAT8E4M3FN)
    assert not rules.is_superfluous(d.INT32, d.STRING, d.INT64)


def test_cast_like_known():
    certify(rules.cast_like_known, graph("float[N] x, double[1] z", "y = CastLike(x, z)"))
