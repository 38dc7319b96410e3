"""Test that `why` returns the inputs and random ops on which a node depends.

One test compares the inputs with the analysis of `Constness`.
"""

import pytest
from model_table import ROOT, TEXTS, saved

import onnxfold
from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage


@pytest.fixture
def mixed(tmp_path):
    return saved(TEXTS["calls, branches and a loop"], tmp_path / "mixed.onnx")


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("z", ["x", "c"]),  # the results of calls
        ("h", ["c"]),  # in a function: the arguments of its calls
        ("b", ["c", "cond", "late", "x"]),  # values that the branches capture
        ("p", ["c", "cond", "late", "x"]),  # a node of a branch runs with its If
        ("next", ["c"]),
    ],
)
def test_inputs(mixed, value, inputs):
    assert sorted(onnxfold.why(mixed, value).inputs) == sorted(inputs)


def test_the_iteration_of_a_loop_is_a_source(mixed):
    (step,) = onnxfold.why(mixed, "on").path
    assert step.value == "go"
    assert "iteration of Loop" in step.made_by


def test_random_ops_are_named(mixed):
    ((node, reason),) = onnxfold.why(mixed, "q").blockers.items()
    assert node == "RandomNormal r"
    assert "different result" in reason


def test_the_path_is_shortest_and_each_step_reads_the_next(mixed):
    assert [step.value for step in onnxfold.why(mixed, "y").path] == ["q", "k", "c"]


def constness_of(node, model, inputs):
    return ModelFacts(model, runtime_constants=inputs).constness.of_node(node)


@pytest.mark.parametrize("name", ["models/swin.onnx", "tests/data/lstm_gru.onnx"])
def test_the_inputs_are_sufficient_and_necessary(name):
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
        assert constness_of(node, model, inputs) is Constness.RUNTIME
        for left_out in inputs:
            fewer = [v for v in inputs if v is not left_out]
            assert constness_of(node, model, fewer) is Constness.VARIABLE
        assert why.path[-1].value in why.inputs
    assert seen
