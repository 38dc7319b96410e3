"""What makes a node run each time, against the constness that is found by another walk."""

import pytest
from model_table import ROOT, saved

import onnxfold
from onnxfold import storage
from onnxfold.analysis.constness import Constness, ConstnessAnalysis

MIXED = """
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
def mixed(tmp_path):
    return saved(MIXED, tmp_path / "mixed.onnx")


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("z", ["x", "c"]),  # of what calls make
        ("h", ["c"]),  # in a function: of what its calls are given
        ("b", ["c", "cond", "late", "x"]),  # of what the branches capture
        ("p", ["c", "cond", "late", "x"]),  # a node of a branch runs with its If
        ("next", ["c"]),
    ],
)
def test_inputs(mixed, value, inputs):
    assert sorted(onnxfold.why(mixed, value).inputs) == sorted(inputs)


def test_the_turn_of_a_loop_is_a_source(mixed):
    (step,) = onnxfold.why(mixed, "on").path
    assert step.value == "go"
    assert "turn of Loop" in step.made_by


def test_random_ops_are_named(mixed):
    ((node, reason),) = onnxfold.why(mixed, "q").blockers.items()
    assert node == "RandomNormal r"
    assert "another result" in reason


def test_the_path_is_a_shortest_one_and_each_step_reads_the_next(mixed):
    assert [step.value for step in onnxfold.why(mixed, "y").path] == ["q", "k", "c"]


@pytest.mark.parametrize("name", ["models/swin.onnx", "tests/data/lstm_gru.onnx"])
def test_the_inputs_are_enough_and_each_is_needed(name):
    path = ROOT / name
    model = storage.load(path)
    nodes = [node for node in model.graph if node.outputs[0].name]
    seen = set()
    for node in nodes[:: len(nodes) // 8]:
        why = onnxfold.why(path, node.outputs[0].name, level=0)
        inputs = [v for v in model.graph.inputs if v.name in why.inputs]
        if not why.is_variable or why.blockers or tuple(inputs) in seen:
            continue
        seen.add(tuple(inputs))
        assert ConstnessAnalysis(model, inputs).of_node(node) is Constness.RUNTIME
        for left_out in inputs:
            fewer = [v for v in inputs if v is not left_out]
            assert ConstnessAnalysis(model, fewer).of_node(node) is Constness.VARIABLE
        assert why.path[-1].value in why.inputs
    assert seen
