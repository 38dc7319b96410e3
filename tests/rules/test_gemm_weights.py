"""The rules of rules/gemm_weights.py."""

import numpy as np
import pytest
from certify import certify, graph, random, refuse
from onnxfold.rules import gemm_weights as rules

NEAR = 1e-5
BN = "y = BatchNormalization(t, s, z, m, v)"


@pytest.mark.parametrize("name", ["Mul", "Div"])
def test_matmul_scaled(name):
    rule = rules.product_scaled
    scale = f"y = {name}(t, c)"
    w = random(3, 4)
    certify(
        rule,
        graph("float[N,3] x", "t = MatMul(x, w)", scale, w=w, c=np.float32(0.3)),
        graph("float[N,2,3] x", "t = MatMul(x, w)", scale, w=w, c=random(4, seed=3)),
        graph("float[3] x", "t = MatMul(x, w)", scale, w=w, c=random(4, seed=3)),
        tolerance=1e-4,
        times=1,
    )
    refuse(
        rule,
        graph("float[2,3] x", "t = MatMul(x, w)", scale, w=w, c=random(2, 1)),
        graph("float[2,3] x", "t = MatMul(x, w)", scale, w=w, c=random(2, 4)),
        graph("float[2,3] x", "t = MatMul(x, w)", scale, w=w, c=random(1, 1, 4)),
        graph("float[2,3] x", "t = MatMul(x, w)", scale, w=random(3, 1), c=random(4)),
        graph("float[2,2,3] x", "t = MatMul(x, w)", scale, w=random(2, 3, 4), c=random(4)),
        graph(
            "float[2,30] x",
            "t = MatMul(x, w)",
            scale,
            "z = MatMul(x, w)",
            outputs="y, z",
            w=random(30, 40),
            c=random(40),
        ),
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["Mul", "Div"])
def test_gemm_scaled(name, bias):
    rule = rules.product_scaled
    scale = f"y = {name}(t, c)"
    more = {"w": random(3, 4), **({"b": random(4, seed=8)} if bias else {})}
    operands = ", ".join(["x", *more])
    turned = {**more, "w": random(4, 3)}
    certify(
        rule,
        graph("float[N,3] x", f"t = Gemm({operands})", scale, c=np.float32(0.3), **more),
        graph(
            "float[N,3] x",
            f"t = Gemm<alpha=0.5, beta=2.0>({operands})",
            scale,
            c=random(4, seed=3),
            **more,
        ),
        graph(
            "float[N,3] x",
            f"t = Gemm<transB=1>({operands})",
            scale,
            c=random(1, 4, seed=3),
            **turned,
        ),
        tolerance=1e-4,
        times=1,
    )
    refuse(
        rule,
        graph("float[2,3] x", f"t = Gemm({operands})", scale, c=random(2, 1), **more),
        graph("float[2,3] x", f"t = Gemm({operands})", scale, c=random(1, 1, 4), **more),
    )
    if bias:
        rows = {**more, "b": random(2, 1)}
        refuse(rule, graph("float[2,3] x", f"t = Gemm({operands})", scale, c=random(4), **rows))


@pytest.mark.parametrize("name", ["Mul", "Div"])
@pytest.mark.parametrize("gemm", [False, True])
def test_attention_scale(name, gemm):
    rule = rules.attention_scale[gemm]
    product = ("u = Gemm(x, w, b)",) if gemm else ("t = MatMul(x, w)", "u = Add(b, t)")
    start = "float[N,3] x" if gemm else "float[N,5,3] x"
    nodes = (*product, "h = Reshape(u, s)", "k = Transpose<perm=[0,2,1,3]>(h)")
    more = {"w": random(3, 4), "b": random(4), "s": [-1, 5, 2, 2]}
    sizes = {"N": (5, 10)} if gemm else {"N": (1, 2)}
    scale = f"y = {name}(k, c)"
    certify(
        rule,
        graph(start, *nodes, scale, sizes=sizes, c=np.float32(0.3), **more),
        graph(start, *nodes, scale, sizes=sizes, c=np.float32([[0.3]]), **more),
        tolerance=1e-4,
        times=1,
    )
    refuse(
        rule,
        graph(start, *nodes, scale, sizes=sizes, c=random(2, 1, 1), **more),
        graph(start, *nodes, scale, sizes=sizes, c=random(1, 1, 1, 1, 1), **more),
        graph(
            start,
            *nodes,
            scale,
            "z = Relu(u)",
            sizes=sizes,
            outputs="y, z",
            c=np.float32(0.3),
            **more,
        ),
    )


@pytest.mark.parametrize("bias", [False, True])
def test_gemm_batch_normalization(bias):
    more = {
        "w": random(3, 4),
        "s": random(4, seed=1),
        "z": random(4, seed=2),
        "m": random(4, seed=3),
        "v": np.abs(random(4, seed=4)) + np.float32(0.5),
    }
    node = "t = Gemm<alpha=0.5>(x, w)"
    if bias:
        more["b"] = random(4, seed=5)
        node = "t = Gemm<alpha=0.5, beta=2.0>(x, w, b)"
    turned = node.replace("alpha", "transB=1, alpha")
    certify(
        rules.gemm_batch_normalization,
        graph("float[N,3] x", node, BN, **more),
        graph("float[N,3] x", turned, BN, **{**more, "w": random(4, 3)}),
        tolerance=1e-4,
        times=1,
        gone="BatchNormalization",
    )
    training = "y, p, q = BatchNormalization<training_mode=1>(t, s, z, m, v)"
    refuse(
        rules.gemm_batch_normalization,
        graph("float[2,3] x", node, training, outputs="y", **more),
    )
