"""What a branch and its outer graph make of a weight is stored once."""

from __future__ import annotations

import numpy as np
import onnx
from fold_check import large, parse, run, with_weights

import onnxfold

WEIGHT = large(40, 30)


def branches(before: str, then: str, otherwise: str) -> onnx.ModelProto:
    """An If on c, both branches of which make y[N,30] of x[N,40] and the weight w[40,30]."""
    text = f"""g (float[N,40] x, bool c) => (float[N,30] y, float[N,30] z) {{
        {before}
        y = If (c) <
            then_branch = t () => (float[N,30] p) {{ {then} }},
            else_branch = e () => (float[N,30] q) {{ {otherwise} }}
        >
    }}"""
    return with_weights(parse(text), w=WEIGHT)


def optimized(model: onnx.ModelProto, level: int = 0) -> tuple[dict[str, list[str]], list[str]]:
    """The initializers and the ops of all graphs; both models compute the same."""
    after = onnxfold.optimize(onnx.ModelProto.FromString(model.SerializeToString()), level=level)
    onnx.checker.check_model(after)
    for c in (True, False):
        feeds = {"x": large(3, 40, seed=2), "c": np.array(c)}
        for want, got in zip(run(model, feeds), run(after, feeds), strict=True):
            np.testing.assert_array_equal(want, got)
    held: dict[str, list[str]] = {}
    ops = []
    stack = [after.graph]
    while stack:
        graph = stack.pop()
        held[graph.name] = [t.name for t in graph.initializer]
        ops.extend(node.op_type for node in graph.node)
        stack.extend(a.g for node in graph.node for a in node.attribute if a.HasField("g"))
    return held, sorted(ops)


def test_a_view_of_all_of_an_outer_weight_is_that_weight():
    model = branches(
        "z = MatMul (x, w)",
        "a = Transpose (w) b = Transpose (a) p = MatMul (x, b)",
        "c1 = Flatten (w) d = MatMul (x, c1) q = Neg (d)",
    )
    held, ops = optimized(model)
    assert held == {"g": ["w"], "t": [], "e": []}
    assert ops == ["If", "MatMul", "MatMul", "MatMul", "Neg"]


def test_a_branch_makes_what_the_outer_graph_makes():
    model = branches(
        "a = Slice (w, zero, thirty) r = Transpose (a) s = Slice (x, zero, thirty, one)"
        " z = MatMul (s, r)",
        "b = Slice (w, zero, thirty) u = Transpose (b) p = MatMul (s, u)",
        "d = Slice (w, zero, thirty) v = Transpose (d) m = MatMul (s, v) q = Neg (m)",
    )
    with_weights(model, zero=np.array([0]), thirty=np.array([30]), one=np.array([1]))
    held, ops = optimized(model)
    assert "Transpose" not in ops
    assert len(held["g"]) == 4 and not held["t"] and not held["e"]
