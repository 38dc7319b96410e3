"""The rules of rules/logic.py."""

import numpy as np
import pytest
from certify import certify, graph, refuse
from onnxfold.rules import logic as rules

T, F = np.array(True), np.array(False)
XZ = "float[N,3] x, float[N,3] z"


def test_where_constant():
    ints = "int64[N,3] x, int64[3] z"
    certify(rules.where_true, graph(ints, "y = Where(c, x, z)", c=T), gone="Where")
    certify(rules.where_true, graph(ints, "y = Where(c, x, z)", c=np.ones((1, 3), bool)))
    certify(rules.where_true, graph(XZ, "y = Where(c, x, z)", c=T), tolerance=1e-30)
    certify(rules.where_false, graph(XZ, "y = Where(c, x, z)", c=F), gone="Where")
    refuse(rules.where_true, graph(XZ, "y = Where(c, x, z)", c=T), level=1)
    refuse(
        rules.where_true,
        graph("float[1,3] x, float[N,3] z", "y = Where(c, x, z)", c=T),
        graph("float[1,3] x, float[1,3] z", "y = Where(c, x, z)", c=np.ones((4, 1), bool)),
        graph("float[3] x, float z", "y = Where(c, x, z)", c=np.ones((1, 1), bool)),
        graph(XZ, "y = Where(c, x, z)", c=np.array([True, True, False])),
    )
    refuse(rules.where_false, graph(XZ, "y = Where(c, x, z)", c=T))


def test_where_same():
    rule = rules.where_same
    certify(rule, graph("bool[3] c, int32[N,3] x", "y = Where(c, x, x)"), gone="Where")
    certify(rule, graph("bool[3] c, float[N,3] x", "y = Where(c, x, x)"), tolerance=1e-30)
    refuse(rule, graph("bool[N,3] c, int32[3] x", "y = Where(c, x, x)"))
    refuse(rule, graph("bool[3] c, float[N,3] x", "y = Where(c, x, x)"), level=1)


def test_where_not():
    turned = ("n = Not(c)", "y = Where(n, x, z)")
    certify(rules.where_not, graph("bool[N,1] c, int64[3] x, int64 z", *turned), gone="Not")
    certify(
        rules.where_not,
        graph("bool[N,1] c", *turned, x=np.float32([1, np.nan, -np.inf]), z=np.float32(0)),
    )
    certify(rules.where_not, graph("bool[N,1] c, float[3] x, float z", *turned), tolerance=1e-30)
    refuse(rules.where_not, graph("bool[N,1] c, float[3] x", *turned, z=np.float32(0)), level=1)
    refuse(rules.where_not, graph("bool[N] c, int32[N] x", "y = Where(c, x, x)"))


def test_where_in_where():
    certify(
        rules.where_in_where[0],
        graph(
            "bool[N,3] c, float[3] z, float[3] w",
            "t = Where(c, x, z)",
            "y = Where(c, t, w)",
            x=np.float32([1, 0, np.nan]),
        ),
        graph("bool[N] c, int64 x, int64[N] z", "t = Where(c, x, z)", "y = Where(c, t, z)"),
    )
    certify(
        rules.where_in_where[1],
        graph(
            "bool[N,3] c, float w",
            "t = Where(c, w, x)",
            "y = Where(c, z, t)",
            x=np.float32([1, 0, np.nan]),
            z=np.float32(-1),
        ),
    )
    certify(
        rules.where_in_where[0],
        graph("bool[N] c, float x, float[N] z", "t = Where(c, x, z)", "y = Where(c, t, z)"),
        tolerance=1e-30,
    )
    refuse(
        rules.where_in_where[0],
        graph(
            "bool[3] c, float[3] x, float[N,3] z, float[3] w",
            "t = Where(c, x, z)",
            "y = Where(c, t, w)",
        ),
        graph(
            "bool[3] c, bool[3] e, float[3] x, float[3] z, float[3] w",
            "t = Where(e, x, z)",
            "y = Where(c, t, w)",
        ),
    )


@pytest.mark.parametrize("op", ["Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
def test_not_of_comparison(op):
    for rule in rules.not_of_comparison:
        if rule.pair.patterns[0].operands[0].op_types == (op,):
            certify(
                rule,
                graph("int64[N,1] x, int64[3] z", f"t = {op}(x, z)", "y = Not(t)"),
                graph("int32 x, int32[N] z", f"t = {op}(x, z)", "y = Not(t)"),
                gone="Not",
            )
        refuse(rule, graph("float[N] x, float[N] z", f"t = {op}(x, z)", "y = Not(t)"))


def test_nots():
    two = ("a = Not(x)", "b = Not(z)")
    bools = "bool[N,1] x, bool[3] z"
    certify(rules.and_of_nots, graph(bools, *two, "y = And(a, b)"))
    certify(rules.or_of_nots, graph(bools, *two, "y = Or(a, b)"))
    certify(rules.xor_of_nots, graph(bools, *two, "y = Xor(a, b)"), gone="Not")
    certify(rules.xor_true, graph("bool[N] x", "y = Xor(x, c)", c=T), gone="Xor")
    refuse(rules.xor_true, graph("bool[N] x", "y = Xor(x, c)", c=np.array([[True]])))
    refuse(rules.xor_true, graph("bool[N] x", "y = Xor(x, c)", c=F))
    refuse(rules.and_of_nots, graph(bools, "a = Not(x)", "y = And(a, z)"))


def test_and_or_constant():
    certify(rules.and_false, graph("bool[2,3] x", "y = And(x, c)", c=F), gone="And")
    certify(rules.and_false, graph("bool[2,1] x", "y = And(x, c)", c=np.zeros((1, 4), bool)))
    certify(rules.or_true, graph("bool[1] x", "y = Or(x, c)", c=T), gone="Or")
    refuse(rules.and_false, graph("bool[2] x", "y = And(x, c)", c=T))
    refuse(rules.and_false, graph("bool[2] x", "y = And(x, c)", c=np.array([True, False])))
    refuse(rules.or_true, graph("bool[N] x", "y = Or(x, c)", c=T))


def test_same_twice():
    certify(
        rules.same_twice,
        graph("bool[N] x", "t = And(x, x)", "y = Not(t)"),
        graph("bool[N] x", "t = Or(x, x)", "y = Not(t)"),
    )
    certify(rules.xor_same, graph("bool[2] x", "y = Xor(x, x)"), gone="Xor")
    refuse(rules.xor_same, graph("bool[N] x", "y = Xor(x, x)"))
    refuse(rules.same_twice, graph("bool[N] x, bool[N] z", "y = And(x, z)"))
    bools = "bool[N,1] x, bool[3] z"
    certify(rules.same_again, graph(bools, "t = And(z, x)", "y = And(x, t)"))
    refuse(rules.same_again, graph(bools, "t = And(z, x)", "y = Or(x, t)"))
    certify(rules.absorbed[0], graph("bool[N,3] x, bool[3] z", "t = Or(z, x)", "y = And(x, t)"))
    certify(rules.absorbed[1], graph("bool[N,3] x, bool[3] z", "t = And(x, z)", "y = Or(x, t)"))
    refuse(rules.absorbed[0], graph(bools, "t = Or(z, x)", "y = And(x, t)"))


def test_compared_with_itself():
    certify(
        rules.equal_to_itself,
        graph("int64[2,3] x", "y = Equal(x, x)"),
        graph("bool[2] x", "y = Equal(x, x)"),
        graph("int32 x", "y = LessOrEqual(x, x)"),
    )
    refuse(
        rules.equal_to_itself,
        graph("float[2] x", "y = Equal(x, x)"),
        graph("double[2] x", "y = GreaterOrEqual(x, x)"),
        graph("int64[N] x", "y = Equal(x, x)"),
    )
    certify(
        rules.not_less_than_itself,
        graph("float[2,3] x", "y = Less(x, x)"),
        graph("int64 x", "y = Greater(x, x)"),
    )
    refuse(rules.not_less_than_itself, graph("float[2] x, float[2] z", "y = Less(x, z)"))
