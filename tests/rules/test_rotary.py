"""The rules of rules/rotary.py."""

import numpy as np
import pytest
from certify import certify as certify_rule
from certify import graph, ints, random
from certify import refuse as refuse_rule
from onnxfold.rules import rotary as rules

F = np.float32
BOUNDS = ints(zero=[0], half=[4], end=[1 << 62], last=[-1], one=[1], heads=[1], two=[2])
BOUNDS |= {"c": F(0.7)}
SIZES = {"sizes": {"B": (1, 3), "S": (1, 5)}}


def certify(rule, *instances, **options):
    certify_rule(rule, *instances, target="onnxruntime", tolerance=1e-5, **options)


def refuse(rule, *instances):
    refuse_rule(rule, *instances, target="onnxruntime")


def rotated(batch="1", *, scaled=False, heads_axis=True, **changes):
    """What exporters write for queries of [batch, heads, length, size], some of it changed."""
    tables = {"cos": "c0 = Cos(e)", "sin": "s0 = Sin(e)"}
    table = {"c": "c0", "s": "s0"}
    for name in table if scaled else ():
        tables[f"{name}_scaled"] = f"{name}1 = Mul({table[name]}, c)"
        table[name] = f"{name}1"
    for name in table if heads_axis else ():
        tables[f"{name}_heads"] = f"{name}2 = Unsqueeze({table[name]}, heads)"
        table[name] = f"{name}2"
    nodes = {
        "both": "e = Concat<axis=-1>(f, f)",
        **tables,
        "lower": "l = Slice(x, zero, half, last, one)",
        "upper": "u = Slice(x, half, end, last, one)",
        "neg": "n = Neg(u)",
        "turned": "t = Concat<axis=-1>(n, l)",
        "a": f"a = Mul(x, {table['c']})",
        "b": f"b = Mul(t, {table['s']})",
        "y": "y = Add(a, b)",
    }
    angles = f"float[{batch},{'' if heads_axis else '1,'}S,4] f"
    return [f"float[B,2,S,8] x, {angles}", *{**nodes, **changes}.values()]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("heads_axis", [False, True])
def test_half(scaled, heads_axis):
    shared, own = rules.rotary
    made = rotated(scaled=scaled, heads_axis=heads_axis)
    certify(shared, graph(*made, **BOUNDS, **SIZES), times=1, gone="Slice Neg Add")
    if heads_axis:
        older = [
            node.replace("Unsqueeze(", "Unsqueeze<axes=[1]>(").replace(", heads)", ")")
            for node in made
        ]
        instance = graph(*older, opset=11, **BOUNDS, **SIZES)
        certify(shared, instance, times=1, gone="Slice Neg Add")
    if heads_axis:
        made = rotated("B", scaled=scaled)
        certify(own, graph(*made, **BOUNDS, **SIZES), times=1, gone="Neg Add")


def test_what_is_another_rotation():
    changes = (
        {"lower": "l = Slice(x, one, half, last, one)"},
        {"both": "e0 = Neg(f) e = Concat<axis=-1>(f, e0)"},
        {"turned": "t = Concat<axis=-1>(l, n)"},
        {"s_heads": "s2 = Unsqueeze(s0, two)"},
        {"y": "y = Sub(a, b)"},
        {"b": "b = Mul(t, c2)"},
    )
    for rule in rules.rotary:
        for change in changes:
            refuse(rule, graph(*rotated(**change), **BOUNDS))
        refuse(rule, graph(*rotated("C"), **BOUNDS))
        refuse(rule, graph(*rotated(), **{**BOUNDS, **ints(half=[3])}))
        refuse(rule, graph(*rotated(scaled=True), **{**BOUNDS, "c": random(8)}))


def test_rows():
    nodes = (
        "h = Transpose<perm=[0,2,1,3]>(x)",
        "r = com.microsoft.RotaryEmbedding(h, zero, c, s)",
        "t = Transpose<perm=[0,2,1,3]>(r)",
        "y = Reshape(t, rows)",
    )
    more = {"c": random(9, 4), "s": random(9, 4), "domains": {"com.microsoft": 1}}
    more |= {"outputs": "z", **SIZES}
    operand, last = "float[B,S,2,8] x", "z = Add(y, c1)"
    both = graph(operand, *nodes, last, **more, c1=F([[[0]]]), **ints(zero=[0], rows=[0, 0, 16]))
    for output in both.model.graph.output:
        output.type.tensor_type.elem_type = 1
        for _ in range(3):
            output.type.tensor_type.shape.dim.add()
    certify(rules.rotary_of_rows, both, gone="Transpose")
    refuse(
        rules.rotary_of_rows,
        graph(operand, *nodes, last, **more, c1=F([[[0]]]), **ints(zero=[0], rows=[0, -1, 8])),
    )
