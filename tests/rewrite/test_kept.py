"""Kept patterns: an inexact rule takes all of one, or nothing."""

import math

import numpy as np
import onnx_ir as ir
import pytest
from certify import graph
from onnxfold.rules import convolutions, onnxruntime_fusions

from onnxfold.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import RuleError, RuleSet, constants, keep, number, op, rule, values
from onnxfold.rewrite.rule_set import builtin_rule_sets

x = values("x")
c, d = constants("c d")
F = np.float32

wide = rule(op.Mul(op.Relu(x), c) >> op.Relu(op.Mul(x, c)), inexact=True)
whole = rule(op.Exp(op.Mul(op.Relu(x), c)) >> op.Sigmoid(x), inexact=True)
exact = rule(op.Relu(op.Relu(x)) >> op.Relu(x))
scaled = keep(op.Exp(op.Mul(op.Relu(x), c)), where=number(c) > 1)
for _name in ("wide", "whole", "exact", "scaled"):
    globals()[_name].name = _name


def report_of(instance, *rules, level=2):
    simplify = Simplify([RuleSet("test", rules)], options=Options(level=level))
    model = ir.from_proto(instance.model)
    simplify(model)
    return simplify.report, [node.op_type for node in model.graph]


def chain(*more, number=2.0, outputs=None):
    nodes = ("r = Relu(x)", "m = Mul(r, k)", "y = Exp(m)", *more)
    return graph("float[N] x", *nodes, outputs=outputs, k=F(number))


def test_a_part_is_not_taken():
    report, ops = report_of(chain(), wide, scaled)
    assert ops == ["Relu", "Mul", "Exp"] and not report.total
    assert {rules: len(found) for rules, found in report.spared.items()} == {("wide", "scaled"): 1}
    assert report_of(chain(), wide)[0].total == 1
    assert report_of(chain(number=0.5), wide, scaled)[0].total == 1, "its condition does not hold"


def test_the_whole_may_be_taken():
    report, ops = report_of(chain(), wide, whole, scaled)
    assert ops == ["Sigmoid"] and report.counts == {"whole": 1}


def test_what_is_beside_it_may_be_taken():
    beside = chain("s = Relu(y)", "z = Mul(s, k)", outputs="z")
    report, ops = report_of(beside, wide, scaled)
    assert ops == ["Relu", "Mul", "Exp", "Mul", "Relu"] and report.counts == {"wide": 1}


def test_exact_rules_take_what_they_want():
    instance = graph(
        "float[N] x", "q = Relu(x)", "r = Relu(q)", "m = Mul(r, k)", "y = Exp(m)", k=F(2)
    )
    report, ops = report_of(instance, exact, wide, scaled)
    assert ops == ["Relu", "Mul", "Exp"] and report.counts == {"exact": 1}


def test_what_is_spared_is_not_promised():
    simplify = Simplify([RuleSet("test", (wide, scaled))], options=Options(level=1))
    assert not simplify.withheld(ir.from_proto(chain().model))
    assert simplify.withheld(ir.from_proto(chain(number=0.5).model)) == {"wide": 1}


def test_a_pattern_is_checked():
    with pytest.raises(RuleError, match="no op Nonsense"):
        keep(op.Nonsense(x))
    with pytest.raises(RuleError, match="does not"):
        keep(op.Relu(x), where=number(c) > 0)


@pytest.mark.parametrize(
    ("kept", "nodes"),
    [
        ("kept_gelu_by_erf", ("t = Div(x, r)", "e = Erf(t)", "a = Add(e, one)")),
        (
            "kept_gelu_by_tanh",
            *[("q = Pow(x, three)", "w = Mul(q, c)", "s = Add(x, w)", "i = Mul(s, k)")],
        ),
    ],
)
def test_gelu_stays_what_onnxruntime_knows(kept, nodes):
    """Neither does the scale of its result go into the convolution behind it."""
    if kept == "kept_gelu_by_tanh":
        nodes = (*nodes, "e = Tanh(i)", "a = Add(e, one)")
    rest = ("m = Mul(x, a)", "h = Mul(m, half)", "y = Conv(h, v)")
    numbers = {"r": F(math.sqrt(2)), "one": F(1), "half": F(0.5), "three": F(3)}
    numbers |= {"c": F(0.044715), "k": F(math.sqrt(2 / math.pi))}
    weight = np.ones((4, 4, 1), F)
    instance = graph("float[N,4,3] x", *nodes, *rest, v=weight, **numbers)
    builtin_rule_sets()  # gives rules their names
    moved = convolutions.convolution_of_scaled[0]
    assert report_of(instance, moved)[0].total == 1
    report, _ = report_of(instance, moved, getattr(onnxruntime_fusions, kept))
    assert not report.total and list(report.spared) == [(moved.name, kept)]
