"""The rules of rules/runtime_constants.py."""

import numpy as np
from certify import certify, graph, random, refuse
from onnxfold.rules import runtime_constants as rules

NEAR = 1e-4


def product(*nodes, inputs="float[N,4] x, float[4,3] a, float[3,5] b", runtime="a b", **given):
    return graph(inputs, *nodes, runtime=runtime, **given)


def test_products_of_products():
    chain = "t = MatMul(x, a)", "y = MatMul(t, b)"
    certify(rules.product_of_products, product(*chain), tolerance=NEAR)
    low = "float[M,N,4] x, float[4,K] a, float[K,5] b"
    certify(rules.product_of_products, product(*chain, inputs=low), tolerance=NEAR)
    inputs = "float[N,4] x, float[4,3] a"
    of_weight = product(*chain, inputs=inputs, runtime="a", b=random(3, 5))
    certify(rules.product_of_products, of_weight, tolerance=NEAR)
    refuse(
        rules.product_of_products,
        product(*chain, runtime="a"),
        product(*chain, runtime=""),
        product(*chain, runtime="x a b"),
        product("t = MatMul(x, a)", "s = MatMul(t, b)", "y = Concat<axis=1>(s, t)"),
        product(*chain, inputs="float[N,4] x, float[M,4,3] a, float[3,5] b"),
    )


def test_integers_keep_every_bit():
    inputs = "int32[N,4] x, int32[4,3] a, int32[3,5] b"
    chain = "t = MatMul(x, a)", "y = MatMul(t, b)"
    certify(rules.product_of_products, product(*chain, inputs=inputs))


def test_factors_of_products():
    nodes = "t = MatMul(x, a)", "y = Mul(t, c)"
    rule = rules.factor_of_product
    certify(
        rule,
        product(*nodes, c=np.float32(0.7)),
        product(*nodes, inputs="float[N,4] x, float[4,3] a, float c", runtime="a c"),
        tolerance=NEAR,
    )
    refuse(
        rule,
        product(*nodes, runtime="b", c=np.float32(2)),
        product(*nodes, c=random(3)),
        product(*nodes, inputs="float[N,4] x, float[4,3] a, float c", runtime="a"),
    )


def test_products_in_another_type():
    nodes = "t = Cast<to=1>(x)", "s = MatMul(t, a)", "y = Cast<to=10>(s)"
    inputs = "float16[N,4] x, float[4,3] a"
    certify(
        rules.product_in_another_type, product(*nodes, inputs=inputs, runtime="a"), tolerance=0.02
    )
    refuse(rules.product_in_another_type, product(*nodes, inputs=inputs, runtime=""))


def test_sums_of_products():
    nodes = "t = MatMul(x, w)", "s = MatMul(x, a)", "y = Add(t, s)"
    inputs = "float[N,4] x, float[4,3] a"
    certify(
        rules.sum_of_products,
        product(*nodes, inputs=inputs, runtime="a", w=random(4, 3)),
        product(*nodes[:2], "y = Add(s, t)", inputs=inputs, runtime="a", w=random(4, 3)),
        product(*nodes, inputs=f"{inputs}, float[4,3] w", runtime="a w"),
        tolerance=NEAR,
    )
    refuse(
        rules.sum_of_products,
        product(*nodes, inputs=inputs, runtime="", w=random(4, 3)),
        product(*nodes, inputs=f"{inputs}, float[4,3] w", runtime="a"),
        product(*nodes, inputs="float[N,4] x, float[4,1] a", runtime="a", w=random(4, 3)),
        product(
            *nodes[:2], "r = Add(t, s)", "y = Mul(r, t)", inputs=inputs, runtime="a", w=random(4, 3)
        ),
    )


def test_sums_of_products_and_a_bias():
    nodes = "t = MatMul(x, w)", "r = Add(t, k)", "s = MatMul(x, a)", "y = Add(r, s)"
    given = {"inputs": "float[N,4] x, float[4,3] a", "w": random(4, 3), "k": random(3)}
    certify(rules.sum_of_products_and_bias, product(*nodes, runtime="a", **given), tolerance=NEAR)
    refuse(rules.sum_of_products_and_bias, product(*nodes, runtime="", **given))


def test_gemm():
    nodes = ("y = Gemm<transB=1>(x, a)",)
    inputs = "float[N,4] x, float[3,4] a"
    rule = rules.gemm_without_bias
    certify(rule, product(*nodes, inputs=inputs, runtime="a"), tolerance=NEAR, gone="Gemm")
    refuse(
        rule,
        product(*nodes, inputs=inputs, runtime=""),
        product("y = Gemm<transB=1, alpha=0.3>(x, a)", inputs=inputs, runtime="a"),
    )


def test_gemm_and_product():
    nodes = "t = Gemm<transB=1>(x, w, k)", "s = MatMul(x, a)", "y = Add(t, s)"
    given = {"inputs": "float[N,4] x, float[4,3] a", "w": random(3, 4), "k": random(3)}
    rule = rules.gemm_and_product
    plain = "t = Gemm<transB=1>(x, w)", *nodes[1:]
    for each in (nodes, plain):
        certify(rule, product(*each, runtime="a", **given), tolerance=NEAR)
    refuse(rule, product(*nodes, runtime="", **given))


def test_gemm_of_what_is_flat():
    given = {
        "inputs": "float[N,2,4] x, float[4,3] a",
        "w": random(4, 3),
        "k": random(3),
        "shape": np.array([-1, 4]),
        "whole": np.array([-1, 2, 3]),
    }
    nodes = (
        *("f = Reshape(x, shape)", "t = Gemm(f, w, k)", "r = Reshape(t, whole)"),
        *("s = MatMul(x, a)", "y = Add(r, s)"),
    )
    rule = rules.flat_gemm_and_product
    certify(rule, product(*nodes, runtime="a", **given), tolerance=NEAR, gone="MatMul")
    refuse(
        rule,
        product(*nodes, runtime="", **given),
        product(*nodes, runtime="a", **{**given, "whole": np.array([2, -1, 3])}),
    )


def test_convolutions():
    inputs = "float[N,3,6,6] x, float[2,3,3,3] a, float[5,2,1,1] b"
    nodes = "t = Conv<pads=[1,1,1,1], strides=[2,2]>(x, a)", "y = Conv(t, b)"
    any_rank = "float[N,3,6,6] x, float[R,3,3,3] a, float[5,R,1,1] b"
    for each in (inputs, any_rank):
        one = graph(each, *nodes, runtime="a b", sizes={"R": (1, 2)})
        certify(rules.conv_of_conv, one, tolerance=NEAR, times=1)
    refuse(
        rules.conv_of_conv,
        product(*nodes, inputs=inputs, runtime="b"),
        product(nodes[0], "y = Conv<pads=[1,1,1,1]>(t, b)", inputs=inputs),
        product(nodes[0], "y = Conv<strides=[2,2]>(t, b)", inputs=inputs),
        product("t = Conv(x, a, k)", nodes[1], inputs=inputs, k=random(2)),
    )


def test_factors_and_sums_of_convolutions():
    inputs = "float[N,3,6,6] x, float[5,3,3,3] a"
    nodes = "t = Conv(x, a)", "y = Mul(t, c)"
    given = {"inputs": inputs, "runtime": "a"}
    certify(rules.factor_of_conv, product(*nodes, **given, c=np.float32(0.7)), tolerance=NEAR)
    refuse(rules.factor_of_conv, product(*nodes, **given, c=random(5, 1, 1)))
    nodes = "t = Conv(x, w, k)", "s = Conv(x, a)", "y = Add(t, s)"
    given |= {"w": random(5, 3, 3, 3), "k": random(5)}
    plain = "t = Conv(x, w)", *nodes[1:]
    for each in (nodes, plain):
        certify(rules.sum_of_convs, product(*each, **given), tolerance=NEAR)
    other = "s = Conv<pads=[1,0,0,1]>(x, a)"
    refuse(
        rules.sum_of_convs,
        product(nodes[0], other, nodes[2], **given),
        product(*nodes, **{**given, "runtime": ""}),
    )
