"""The rules of rules/identities.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import identities as rules

F16, F32, I64 = np.float16, np.float32, np.int64


def test_identity():
    certify(rules.identity, graph("float[N] x", "t = Identity(x)", "y = Relu(t)"), gone="Identity")
    certify(rules.identity, graph("float[N] x", "t = Relu(x)", "y = Identity(t)"), gone="Identity")
    refuse(rules.identity, graph("float[N] x", "y = Identity(x)"))


def test_cast_to_same_dtype():
    certify(
        rules.cast_to_same_dtype,
        graph("float[N] x", "y = Cast<to=1>(x)"),
        graph("float[N] x", "t = Cast<to=10>(x)", "s = Cast<to=10>(t)", "y = Neg(s)"),
        graph("int64 x", "t = Cast<to=7>(x)", "y = Neg(t)"),
    )
    refuse(rules.cast_to_same_dtype, graph("float[N] x", "y = Cast<to=10>(x)"))


def test_dropout():
    certify(rules.dropout[0], graph("float[N] x", "y = Dropout<ratio=0.3>(x)", opset=10))
    certify(
        rules.dropout[1],
        graph("float[N] x", "y = Dropout(x, r, m)", r=F32(0.3), m=False),
    )
    refuse(
        rules.dropout[1],
        graph("float[N] x", "y = Dropout(x, r, m)", r=F32(0.3), m=True),
        graph("float[N] x, bool m", "y = Dropout(x, r, m)", r=F32(0.3)),
    )


def test_transpose_nothing():
    certify(
        rules.transpose_nothing,
        graph("float[A,B,2] x", "y = Transpose<perm=[0,1,2]>(x)"),
        graph("float[A] x", "y = Transpose(x)"),
        graph("float x", "y = Transpose(x)"),
    )
    refuse(rules.transpose_nothing, graph("float[A,B] x", "y = Transpose(x)"))


def test_same_shape_again():
    rule = rules.same_shape_again
    certify(
        rule,
        graph("float[2,3] x", "y = Reshape(x, s)", s=[2, 3]),
        graph("float[2,3] x", "y = Reshape(x, s)", s=[-1, 3]),
        graph("float[2,3] x", "y = Expand(x, s)", s=[1, 3]),
        graph("float[2,3] x", "y = Expand(x, s)", s=[1]),
        graph("float[2,3] x", "t = Squeeze(x)", "y = Neg(t)"),
        graph("float[N,3] x", "t = Flatten(x)", "y = Neg(t)"),
        graph("float[2,3] x", "y = Tile(x, r)", r=[1, 1]),
        graph("float[1] x", "y = Reshape(x, s)", s=[1]),
    )
    refuse(
        rule,
        graph("float[2,3] x", "y = Reshape(x, s)", s=[3, 2]),
        graph("float x", "y = Reshape(x, s)", s=[1]),
        graph("float[N,3] x", "y = Expand(x, s)", s=[3, 3]),
        graph("float[2,3] x", "y = Expand(x, s)", s=[1, 2, 3]),
        graph("float[N] x", "y = Tile(x, r)", r=[2]),
        graph("float[N,A] x, int64[2] s", "y = Reshape(x, s)", feeds={"s": np.array([1, -1])}),
    )


def test_slice():
    rule = rules.slice_same_shape
    certify(
        rule,
        graph("float[4,3] x", "y = Slice(x, b, e)", b=[0], e=[4]),
        graph("float[4,3] x", "y = Slice(x, b, e, a, s)", b=[-9], e=[99], a=[1], s=[1]),
    )
    refuse(rule, graph("float[4] x", "y = Slice(x, b, e, a, s)", b=[-1], e=[-9], a=[0], s=[-1]))


def test_pad():
    certify(
        rules.pad_nothing,
        graph("float[N,2] x", "y = Pad(x, p)", p=[0] * 4),
        graph("float[N,2] x", 'y = Pad<mode="reflect">(x, p)', p=[0] * 4),
        graph("float[N,2] x", "y = Pad(x, p, v)", p=[0] * 4, v=F32(7)),
    )
    refuse(rules.pad_nothing, graph("float[N,2] x", "y = Pad(x, p)", p=[0, 1, 0, -1]))


def test_concat_of_one():
    certify(rules.concat_of_one, graph("float[N,2] x", "y = Concat<axis=1>(x)"))
    refuse(rules.concat_of_one, graph("float[N,2] x", "y = Concat<axis=1>(x, x)"))


def test_add_zero():
    certify(
        rules.add_zero,
        graph("float[N,3] x", "y = Add(x, c)", c=F32(-0.0)),
        graph("float16[N,3] x", "y = Add(c, x)", c=np.full((1, 3), -0.0, F16)),
        graph("int64[N] x", "y = Add(x, c)", c=I64(0)),
        graph("uint8[N] x", "y = Add(x, c)", c=np.zeros(1, np.uint8)),
        graph("double x", "y = Add(x, c)", c=np.float64(-0.0)),
    )
    certify(rules.add_positive_zero, graph("float[N] x", "y = Add(x, c)", c=F32(0)), tolerance=1e-9)
    certify(  # a sum with 0.0 is no -0.0: DETR adds the position, and zeros as the query
        rules.add_positive_zero,
        graph("float[N] x", "t = Add(x, b)", "y = Add(t, c)", b=F32(0), c=F32(0)),
        graph(
            "float[N,3] x", "t = Add(b, x)", "y = Add(c, t)", b=np.array([1, 0, -2], F32), c=F32(0)
        ),
        graph(
            "float[N,3] x, int64[2] n",
            "t = Tile(b, n)",
            "u = Add(t, c)",
            "y = Mul(u, x)",
            feeds={"n": np.array([1, 1])},
            b=np.array([[1, 0, -2]], F32),
            c=F32(0),
        ),
        graph(  # HiFi-GAN adds residual blocks to 0.0
            "float[N,2,9] x, float[N,3,9] z",
            "t = Conv<pads=[1,1]>(x, w, b)",
            "u = Add(z, t)",
            "y = Add(c, u)",
            w=np.full((3, 2, 3), 1e-30, F32),
            b=np.zeros(3, F32),
            c=F32(0),
        ),
        times=1,
    )
    refuse(
        rules.add_positive_zero,
        graph(
            "float[2,1,5] x",
            "t = Conv(x, w)",
            "y = Add(t, c)",
            w=np.full((2, 1, 1), -1e-30, F32),
            c=F32(0),
        ),
        graph("float[N] x", "t = Add(x, b)", "y = Add(t, c)", b=F32(-0.0), c=F32(0)),
        graph("float[N] x, float[N] z", "t = Add(x, z)", "y = Add(t, c)", c=F32(0)),
        level=1,
    )
    refuse(
        rules.add_zero,
        graph("float[N,3] x", "y = Add(x, c)", c=F32(0.0)),
        graph("float x", "y = Add(x, c)", c=np.full(1, -0.0, F32)),
        graph("float[N] x", "y = Add(x, c)", c=np.full((1, 1), -0.0, F32)),
        graph("float[N] x", "y = Add(x, c)", c=np.full(3, -0.0, F32)),
        graph("float[N,3] x", "y = Add(x, c)", c=np.array([-0.0, 0.0, -0.0], F32)),
        graph("float[1] x", "y = Add(x, c)", c=np.zeros(0, F32)),
    )


def test_neutral_elements():
    certify(
        rules.subtract_zero,
        graph("float[N,3] x", "y = Sub(x, c)", c=F32(0)),
        graph("int32[N] x", "y = Sub(x, c)", c=np.int32(0)),
    )
    refuse(rules.subtract_zero, graph("float[N] x", "y = Sub(c, x)", c=F32(0)))
    refuse(rules.subtract_zero, graph("float[N] x", "y = Sub(x, c)", c=F32(-0.0)))
    for op, rule in (("Mul", rules.multiply_by_one), ("Div", rules.divide_by_one)):
        certify(
            rule,
            graph("float[N,3] x", f"y = {op}(x, c)", c=F32(1)),
            graph("float[2,3] x", f"y = {op}(x, c)", c=np.ones((2, 3), F32)),
            graph("int64[N] x", f"y = {op}(x, c)", c=np.ones(1, I64)),
        )
        refuse(
            rule,
            graph("float[N] x", f"y = {op}(x, c)", c=np.ones((1, 1), F32)),
            graph("float[N,M] x", f"y = {op}(x, c)", c=np.ones((2, 3), F32)),
            graph("float[N] x, float c", f"y = {op}(x, c)"),
        )
    certify(rules.and_true, graph("bool[N] x", "y = And(c, x)", c=True))
    refuse(rules.and_true, graph("bool[N] x", "y = And(x, c)", c=[[True]]))
    certify(rules.or_false, graph("bool[N] x", "y = Or(c, x)", c=False))
    certify(rules.or_false, graph("bool[N] x", "y = Xor(x, c)", c=False))
    refuse(rules.or_false, graph("bool[N] x", "y = Or(x, c)", c=True))
