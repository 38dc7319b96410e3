"""The rules of rules/interleaved_rotary.py."""

import pytest
from certify import certify as certify_rule
from certify import graph, ints
from certify import refuse as refuse_rule
from onnxfold.rules import interleaved_rotary as rules

NUMBERS = ints(zero=[0], one=[1], end=[1 << 62], last=[3], two=[2], behind=[-1])
NUMBERS |= ints(both=[1, 1, 1, 1, 2], whole=[0, -1, 1, 8], back=[0, 0, 3, 8], six=[6])
SIZES = {"sizes": {"B": (1, 3), "S": (1, 5)}}


def rotated(batch="1", repeat="Tile", **changes):
    """What exporters write for queries of [batch, length, heads, size], some of it changed."""
    nodes = {
        "c1": f"c1 = {repeat}(c, both)",
        "c2": "c2 = Reshape(c1, whole)",
        "s1": f"s1 = {repeat}(s, both)",
        "s2": "s2 = Reshape(s1, whole)",
        "even": "l = Slice(x, zero, end, last, two)",
        "odd": "u = Slice(x, one, end, last, two)",
        "neg": "n = Neg(u)",
        "a1": "n1 = Unsqueeze(n, behind)",
        "a2": "l1 = Unsqueeze(l, behind)",
        "pairs": "p = Concat<axis=-1>(n1, l1)",
        "turned": "t = Reshape(p, back)",
        "a": "a = Mul(x, c2)",
        "b": "b = Mul(t, s2)",
        "y": "y = Add(a, b)",
    }
    tables = f"float[{batch},S,1,4,1] c, float[{batch},S,1,4,1] s"
    return [f"float[B,S,3,8] x, {tables}", *{**nodes, **changes}.values()]


@pytest.mark.parametrize("repeat", ["Tile", "Expand"])
def test_neighbours(repeat):
    shared, own = rules.interleaved_rotary
    for rule, batch in ((shared, "1"), (own, "B")):
        certify_rule(
            rule,
            graph(*rotated(batch, repeat), **NUMBERS, **SIZES),
            target="onnxruntime",
            tolerance=1e-5,
            times=1,
            gone="Neg Add",
        )


def test_what_is_another_rotation():
    changes = (
        {"even": "l = Slice(x, one, end, last, two)"},
        {"odd": "u = Slice(x, one, six, last, two)", "even": "l = Slice(x, zero, six, last, two)"},
        {"pairs": "p = Concat<axis=-1>(l1, n1)"},
        {"pairs": "p = Concat<axis=-2>(n1, l1)"},
        {"y": "y = Sub(a, b)"},
        {"b": "b = Mul(t, c2)", "a": "a = Mul(t, s2)"},
    )
    for rule in rules.interleaved_rotary:
        for change in changes:
            refuse_rule(rule, graph(*rotated(**change), **NUMBERS), target="onnxruntime")
        refuse_rule(rule, graph(*rotated("C"), **NUMBERS), target="onnxruntime")
