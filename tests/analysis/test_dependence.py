"""What makes a node run each time, against the constness that is found by another walk."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from onnxfold import storage
from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.dependence import Dependence
from onnxfold.graphs import all_graphs

ROOT = Path(__file__).parents[2]
MIXED = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[n, 4] x, float[4, 4] c, bool cond, float[4, 4] late) => (float[n, 4] y) <
    float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, int64 turns = {3},
    bool yes = {1}
> {
    s, u = local.pair (c, x)
    b = If (cond) <
        then_branch = t () => (float[4, 4] o) { i = MatMul (s, w) o = Mul (i, s) },
        else_branch = e () => (float[4, 4] p) { p = Add (late, w) }
    >
    r = RandomNormal <shape = [4, 4]> ()
    k = Add (r, c)
    l = Loop (turns, yes, w) <
        body = body (int64 turn, bool go, float[4, 4] v) => (bool on, float[4, 4] next) {
        on = Identity (go)
        next = Mul (v, c)
    }>
    z = MatMul (u, s)
    m = Add (b, l)
    q = MatMul (z, k)
    y = MatMul (q, m)
}
<domain: "local", opset_import: ["" : 21, "local" : 1]>
pair (a, k) => (d, f) { h = Exp (a) d = MatMul (h, h) f = local.inner (k, a) }
<domain: "local", opset_import: ["" : 21]>
inner (j, unread) => (e) { e = Neg (j) }
"""


@pytest.fixture
def mixed():
    return storage.from_proto(onnx.parser.parse_model(MIXED))


def maker(model, name: str):
    return next(n for g in all_graphs(model) for n in g for v in n.outputs if v.name == name)


def inputs_of(model, name: str) -> list[str]:
    return [v.name for v in Dependence(model).sources(maker(model, name)).inputs]


def test_calls_depend_on_what_the_function_makes_them_of(mixed):
    assert inputs_of(mixed, "z") == ["x", "c"]
    assert inputs_of(mixed, "i") == ["c"]
    assert inputs_of(mixed, "h") == ["c"]
    assert inputs_of(mixed, "e") == ["x"]


def test_branches_and_bodies_depend_on_what_they_capture(mixed):
    assert inputs_of(mixed, "p") == ["late"]
    assert inputs_of(mixed, "b") == ["c", "cond", "late"]
    assert inputs_of(mixed, "next") == ["c"]


def test_the_turn_of_a_loop_is_a_source(mixed):
    dependence = Dependence(mixed)
    sources = dependence.sources(maker(mixed, "on"))
    assert [v.name for v in sources.path] == ["go"]
    assert "turn of Loop" in dependence.kind_of_input(sources.path[0])


def test_random_ops_are_named(mixed):
    sources = Dependence(mixed).sources(maker(mixed, "q"))
    assert [o.node.op_type for o in sources.objections] == ["RandomNormal"]
    assert "another result" in sources.objections[0].reason


def test_the_path_is_a_shortest_one_and_each_step_reads_the_next(mixed):
    sources = Dependence(mixed).sources(maker(mixed, "y"))
    assert [v.name for v in sources.path] == ["q", "k", "c"]


@pytest.mark.parametrize(
    "path", ["models/swin.onnx", "tests/data/control_flow.onnx", "tests/data/lstm_gru.onnx", None]
)
def test_the_inputs_are_enough_and_each_is_needed(path, mixed):
    model = mixed if path is None else storage.load(ROOT / path)
    dependence = Dependence(model)
    seen = set()
    for node in model.graph:
        if not dependence.is_variable(node) or node.op_identifier() in model.functions:
            continue
        sources = dependence.sources(node)
        inputs = sources.inputs
        if sources.objections or tuple(inputs) in seen:
            continue
        seen.add(tuple(inputs))
        assert ConstnessAnalysis(model, inputs).of_node(node) is Constness.RUNTIME
        for left_out in inputs:
            fewer = [v for v in inputs if v is not left_out]
            assert ConstnessAnalysis(model, fewer).of_node(node) is Constness.VARIABLE
        assert sources.path[-1] in model.graph.inputs
    assert seen
