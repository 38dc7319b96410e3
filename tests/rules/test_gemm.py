"""The rules of rules/gemm.py."""

import numpy as np
import pytest
from certify import certify, graph, random, refuse
from onnxfold.rules import gemm as rules

NEAR = 1e-5
BN = "y = BatchNormalization(t, s, z, m, v)"


@pytest.mark.parametrize("bias", [(4,), (1, 4), (2, 4), (2, 1), (1,), ()])
def test_matmul_add(bias):
    """Bit-equal: several rows, and a sum over at most 128 elements."""
    for depth in (1, 3, 16, 127, 128):
        certify(
            rules.matmul_add,
            graph(
                f"float[2,{depth}] x",
                "t = MatMul(x, w)",
                "y = Add(t, b)",
                w=random(depth, 4),
                b=random(*bias),
            ),
            graph(
                f"float[2,{depth}] x, float[{depth},4] w",
                "t = MatMul(x, w)",
                "y = Add(b, t)",
                b=random(*bias),
            ),
            times=1,
            gone="MatMul Add",
        )


def test_matmul_add_double():
    certify(
        rules.matmul_add,
        graph(
            "double[5,128] x",
            "t = MatMul(x, w)",
            "y = Add(t, b)",
            w=random(128, 40, dtype=np.float64),
            b=random(40, dtype=np.float64),
        ),
    )


@pytest.mark.parametrize("rows, depth", [("1", 8), ("N", 8), ("4", 129), ("4", 500)])
def test_matmul_add_inexact(rows, depth):
    """One row, perhaps one row, or a long sum: the last bits may differ, so not at level 1."""
    model = graph(
        f"float[{rows},{depth}] x",
        "t = MatMul(x, w)",
        "y = Add(t, b)",
        w=random(depth, 40),
        b=random(40),
    )
    refuse(rules.matmul_add, model, level=1)
    certify(rules.matmul_add, model, tolerance=1e-4, times=1)


def test_matmul_add_refused():
    """matmul_add_odd_bias: a bias that raises the rank or makes the product larger."""
    w = random(3, 4)
    refuse(
        rules.matmul_add,
        graph("float[2,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=w, b=random(5, 2, 4)),
        graph("float[1,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=w, b=random(2, 4)),
        graph("float[2,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=random(3, 1), b=random(4)),
        graph("float[N,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=w, b=random(2, 4)),
        graph("float[2,2,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=w, b=random(4)),
        graph("float[3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=w, b=random(4)),
        graph("float[2,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=random(3), b=random(2)),
        graph(
            "float[2,3] x",
            "t = MatMul(x, w)",
            "u = Tanh(t)",
            "y = Add(t, b)",
            outputs="y, u",
            w=w,
            b=random(4),
        ),
        graph(
            "float16[2,3] x",
            "t = MatMul(x, w)",
            "y = Add(t, b)",
            w=w.astype(np.float16),
            b=random(4, dtype=np.float16),
        ),
        graph(
            "int32[2,3] x",
            "t = MatMul(x, w)",
            "y = Add(t, b)",
            w=np.ones((3, 4), np.int32),
            b=np.ones(4, np.int32),
        ),
    )
    certify(
        rules.matmul_add,
        graph("float[2,3] x", "t = MatMul(x, w)", "y = Add(t, b)", w=w, b=random(2, 1)),
        graph("float[2,3] x", "t = MatMul(x, w)", "y = Add(b, t)", w=w, b=np.float32(0.5)),
    )


def test_gemm_add():
    certify(
        rules.gemm_add,
        graph("float[2,3] x", "t = Gemm(x, w)", "y = Add(t, b)", w=random(3, 4), b=random(4)),
        graph(
            "float[2,9] x",
            "t = Gemm<transB=1, beta=0.5>(x, w)",
            "y = Add(b, t)",
            w=random(4, 9),
            b=random(2, 1),
        ),
        graph(
            "float[9,2] x",
            "t = Gemm<transA=1>(x, w)",
            "y = Add(b, t)",
            w=random(9, 4),
            b=random(2, 1),
        ),
        times=1,
        gone="Add",
    )
    scaled = graph(
        "float[2,3] x", "t = Gemm<alpha=0.3>(x, w)", "y = Add(t, b)", w=random(3, 4), b=random(4)
    )
    refuse(rules.gemm_add, scaled, level=1)
    certify(rules.gemm_add, scaled, tolerance=NEAR)
    refuse(
        rules.gemm_add,
        graph("float[2,3] x", "t = Gemm(x, w, b)", "y = Add(t, b)", w=random(3, 4), b=random(4)),
        graph("float[1,3] x", "t = Gemm(x, w)", "y = Add(t, b)", w=random(3, 4), b=random(2, 4)),
        graph("float[N,3] x", "t = Gemm(x, w)", "y = Add(t, b)", w=random(3, 4), b=random(1, 1, 4)),
    )


def test_gemm_scaled():
    product, scale = "t = Gemm<transB=1, alpha=0.5>(x, w)", "y = Mul(c, t)"
    rule, shapes = rules.gemm_scaled, "float[N,3] x, float[4,3] w"
    certify(rule, graph(shapes, product, scale, c=np.float32(3)), tolerance=NEAR)
    refuse(
        rule,
        graph(shapes, product, scale, c=random(4)),
        graph(shapes, product, scale, outputs="y, t", c=np.float32(3)),
        graph(shapes + ", float[4] b", product.replace("w)", "w, b)"), scale, c=np.float32(3)),
        graph(shapes.replace("float", "float16"), product, scale, c=np.float16(3)),
    )


def test_gemm_without_bias():
    zeros = np.zeros(4, np.float32)
    for sizes in ("float[N,3] x", "float[1,200] x"):
        w = random(200 if "200" in sizes else 3, 4)
        certify(
            rules.gemm_zero_bias,
            graph(sizes, "y = Gemm(x, w, b)", w=w, b=zeros),
            graph(sizes, "y = Gemm<alpha=0.3, beta=0.5>(x, w, b)", w=w, b=np.float32(0)),
            times=1,
            tolerance=1e-5,
        )
    refuse(
        rules.gemm_zero_bias,
        graph("float[N,3] x", "y = Gemm(x, w, b)", w=random(3, 4), b=random(4)),
        graph("float[N,3] x", "y = Gemm(x, w, b)", w=random(3, 4), b=zeros, opset=9),
        graph("float[N,3] x", "y = Gemm(x, w)", w=random(3, 4)),
    )


def test_matmul_add_between_reshapes():
    rule = rules.matmul_add_between_reshapes
    nodes = ("t = MatMul(x, w)", "u = Add(t, b)", "y = Reshape(u, s)")
    more = {"w": random(6, 8), "b": random(8)}
    certify(
        rule,
        graph("float[2,3,6] x", *nodes, s=[2, 3, 2, 4], **more),
        graph("float[N,3,6] x", *nodes, s=[0, 3, 2, 4], **more),
        graph("float[N,3,6] x", *nodes, s=[-1, 3, 2, 4], sizes={"N": (1, 2, 5)}, **more),
        graph("float[2,1,3,6] x", *nodes, s=[2, 3, 8], **more),
        graph("float[2,3,6] x", *nodes, s=[-1, 8], w=random(6, 8), b=random(1, 1, 8)),
        graph("float[2,3,6] x", *nodes, s=[-1, 8], w=random(6, 8), b=np.float32(0.5)),
        times=1,
        gone="MatMul Add",
    )
    single = graph("float[1,1,6] x", *nodes, s=[2, 4], **more)
    refuse(rule, single, level=1)
    certify(rule, single, tolerance=NEAR)
    refuse(
        rule,
        graph("float[N,M,6] x", *nodes, s=[0, 0, 2, 4], **more),
        graph("float[2,3,6] x, int64[2] s", *nodes, feeds={"s": np.array([6, 8])}, **more),
        graph("float[2,3,6] x", *nodes, s=[-1, 8], w=random(6, 8), b=random(3, 8)),
        graph("float[2,3,6] x", *nodes, s=[-1, 8], w=random(6, 8), b=random(1, 1, 1, 8)),
        graph("float[2,3,6] x", *nodes, s=[-1, 8], w=random(2, 6, 8), b=random(8)),
        graph("float[2,3,6] x", "t = MatMul(x, w)", "y = Add(t, b)", **more),
        graph("float[2,3,6] x", *nodes, "z = Tanh(u)", outputs="y, z", s=[-1, 8], **more),
        graph("float[6,6] x", *nodes, s=[3, 16], **more),
    )


def test_matmul_of_transposed():
    rule = rules.matmul_of_transposed
    certify(
        rule,
        graph("float[N,3] x, float[4,3] w", "t = Transpose<perm=[1,0]>(w)", "y = MatMul(x, t)"),
        tolerance=1e-4,
        gone="Transpose",
    )
    refuse(
        rule,
        graph("float[2,N,3] x, float[4,3] w", "t = Transpose(w)", "y = MatMul(x, t)"),
        graph("float[N,3] x", "t = Transpose(w)", "y = MatMul(x, t)", w=random(4, 3)),
        graph("int32[N,3] x, int32[4,3] w", "t = Transpose(w)", "y = MatMul(x, t)"),
    )
