"""The rules of rules/arithmetic.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import arithmetic as rules

F32, I64 = np.float32, np.int64
TINY = 1e-6


def test_minus_one():
    rule = rules.multiply_by_minus_one
    certify(
        rule,
        graph("float[N,2] x", "y = Mul(x, c)", c=F32(-1)),
        graph("int64[N,2] x", "y = Mul(c, x)", c=np.array([-1, -1])),
        graph("float16 x", "y = Mul(x, c)", c=np.float16(-1)),
        gone="Mul",
    )
    refuse(
        rule,
        graph("float[2] x", "y = Mul(x, c)", c=F32([[-1]])),
        graph("float[N,1] x", "y = Mul(x, c)", c=F32([-1, -1])),
        graph("float[2] x", "y = Mul(x, c)", c=F32([-1, 1])),
    )
    rule = rules.divide_by_minus_one
    certify(rule, graph("double[N] x", "y = Div(x, c)", c=np.float64(-1)))
    refuse(rule, graph("int64[N] x", "y = Div(x, c)", c=-1))


def test_zero_minus():
    certify(rules.zero_minus, graph("int64[N] x", "y = Sub(c, x)", c=0))
    certify(rules.zero_minus, graph("float[N] x", "y = Sub(c, x)", c=F32(0)), tolerance=TINY)
    refuse(rules.zero_minus, graph("float[N] x", "y = Sub(c, x)", c=F32(0)), level=1)
    refuse(rules.zero_minus, graph("float[N] x", "y = Sub(c, x)", c=F32(-0.0)))
    refuse(rules.zero_minus, graph("uint8[N] x", "y = Sub(c, x)", c=np.uint8(0)))
    certify(rules.minus_zero_minus, graph("float[N] x", "y = Sub(c, x)", c=F32(-0.0)))
    refuse(rules.minus_zero_minus, graph("float[N] x", "y = Sub(c, x)", c=F32(0.0)))
    refuse(rules.minus_zero_minus, graph("float[1] x", "y = Sub(c, x)", c=F32([-0.0] * 3)))


def test_negatives_in_sums():
    both = "float[N,1] x, float[3] z"
    certify(
        rules.add_negative,
        graph(both, "t = Neg(z)", "y = Add(x, t)"),
        graph(both, "t = Neg(x)", "y = Add(t, z)"),
        graph("int64[N] x, int64[N] z", "t = Neg(x)", "y = Add(t, z)"),
        gone="Neg",
    )
    certify(rules.subtract_negative, graph(both, "t = Neg(z)", "y = Sub(x, t)"), gone="Neg")
    refuse(rules.subtract_negative, graph(both, "t = Neg(x)", "y = Sub(t, z)"))
    difference = ("t = Sub(x, z)", "y = Neg(t)")
    certify(rules.negative_of_difference, graph("int64[N] x, int64[N] z", *difference))
    certify(rules.negative_of_difference, graph(both, *difference), tolerance=TINY)
    refuse(rules.negative_of_difference, graph(both, *difference), level=1)


def test_negatives_in_products():
    both = "float[N,1] x, float[3] z"
    nots = ("a = Neg(x)", "b = Neg(z)")
    certify(rules.multiply_negatives, graph(both, *nots, "y = Mul(a, b)"), gone="Neg")
    certify(rules.divide_negatives, graph(both, *nots, "y = Div(a, b)"), gone="Neg")
    refuse(rules.divide_negatives, graph("int64[2] x, int64[2] z", *nots, "y = Div(a, b)"))
    c = F32([[0.0, -0.0, 3.0, np.inf, np.nan]])
    for rule, op in (
        (rules.negative_times_constant, "Mul"),
        (rules.negative_by_constant, "Div"),
    ):
        certify(rule, graph("float[N,1] x", "t = Neg(x)", f"y = {op}(t, c)", c=c))
    for rule, op in ((rules.negative_of_product, "Mul"), (rules.negative_of_quotient, "Div")):
        certify(rule, graph("float[N,1] x", f"t = {op}(x, c)", "y = Neg(t)", c=c))
        refuse(
            rule,
            graph("float[N,1] x", f"t = {op}(x, c)", "y = Neg(t)", outputs="t, y", c=c),
            graph("float[N,1] x, float[5] c", f"t = {op}(x, c)", "y = Neg(t)"),
        )
    certify(
        rules.negative_of_product,
        graph("int64[N] x", "t = Mul(x, c)", "y = Neg(t)", c=np.array(-(2**63))),
    )
    refuse(rules.negative_of_quotient, graph("int64[N] x", "t = Div(x, c)", "y = Neg(t)", c=3))
    refuse(rules.negative_by_constant, graph("int64[N] x", "t = Neg(x)", "y = Div(t, c)", c=3))


def test_absolute():
    certify(rules.absolute_of_absolute, graph("float[N] x", "t = Abs(x)", "y = Abs(t)"))
    certify(
        rules.absolute_of_negative,
        graph("float[N] x", "t = Neg(x)", "y = Abs(t)"),
        graph("int64 x", "t = Neg(x)", "y = Abs(t)"),
        gone="Neg",
    )
    certify(rules.square_of_absolute, graph("float[N] x", "t = Abs(x)", "y = Mul(t, t)"))
    refuse(rules.square_of_absolute, graph("float[N] x, float[N] z", "t = Abs(x)", "y = Mul(t, z)"))
    certify(rules.sign_of_sign, graph("float[N] x", "t = Sign(x)", "y = Sign(t)"))


def test_rounding():
    certify(
        rules.rounding_of_rounded,
        graph("float[N] x", "t = Floor(x)", "y = Ceil(t)"),
        graph("float[N] x", "t = Round(x)", "y = Round(t)"),
    )
    refuse(rules.rounding_of_rounded, graph("float[N] x", "t = Abs(x)", "y = Ceil(t)"))


def test_integers():
    certify(rules.subtract_itself, graph("int64[2,3] x", "y = Sub(x, x)"), gone="Sub")
    refuse(
        rules.subtract_itself,
        graph("float[2] x", "y = Sub(x, x)"),
        graph("int64[N] x", "y = Sub(x, x)"),
    )
    certify(rules.multiply_by_zero, graph("int32[2,1] x", "y = Mul(x, c)", c=np.zeros(3, np.int32)))
    refuse(
        rules.multiply_by_zero,
        graph("float[2] x", "y = Mul(x, c)", c=F32(0)),
        graph("int64[N] x", "y = Mul(x, c)", c=0),
    )
    sums = ("t = Add(x, z)", "y = Sub(t, z)")
    certify(rules.subtract_what_was_added, graph("int64[N,3] x, int64[3] z", *sums))
    refuse(
        rules.subtract_what_was_added,
        graph("float[N,3] x, float[3] z", *sums),
        graph("int64[3] x, int64[N,3] z", *sums),
    )
    sums = ("t = Sub(x, z)", "y = Add(z, t)")
    certify(rules.add_what_was_subtracted, graph("int64[N,3] x, int64 z", *sums))
    refuse(rules.add_what_was_subtracted, graph("float[N,3] x, float z", *sums))


def test_divisions():
    both = "float[N,1] x, float[3] z"
    feeds = {"x": F32([[2], [3]]), "z": F32([3, 7, 11])}
    sizes = {"N": [2]}
    certify(
        rules.multiply_by_reciprocal,
        graph(both, "t = Reciprocal(z)", "y = Mul(x, t)", feeds=feeds, sizes=sizes),
        tolerance=TINY,
    )
    refuse(rules.multiply_by_reciprocal, graph(both, "t = Reciprocal(z)", "y = Mul(x, t)"), level=1)
    divided = ("t = Div(c, z)", "y = Mul(x, t)")
    certify(
        rules.multiply_by_one_over,
        graph(both, *divided, feeds=feeds, sizes=sizes, c=F32(1)),
        tolerance=TINY,
    )
    refuse(
        rules.multiply_by_one_over,
        graph("int64[N] x, int64[N] z", *divided, c=1),
        graph(both, *divided, c=F32(2)),
        graph(both, *divided, c=F32([[1], [1]])),
    )
    certify(
        rules.reciprocal_of_quotient,
        graph(both, "t = Div(x, z)", "y = Reciprocal(t)", feeds=feeds, sizes=sizes),
        tolerance=TINY,
    )
