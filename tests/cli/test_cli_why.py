import json

import pytest
from model_table import TEXTS, floats, saved

import onnxfold


@pytest.fixture
def adapter(tmp_path):
    return saved(TEXTS["an adapter and an If"], tmp_path / "adapter.onnx", w=floats(64, 64))


def test_suggested_constants_let_split_cache_the_value(run, adapter, tmp_path):
    why = onnxfold.why(adapter, "merged")
    assert (why.is_variable, why.inputs) == (True, ["a", "b"])
    printed = run("explain", adapter, "--why", "merged").out
    assert "split --runtime-const a --runtime-const b" in printed
    bundle = onnxfold.split(adapter, tmp_path / "b", runtime_constants=why.inputs, level=0)
    assert bundle.manifest.nodes["runtime_fold"] == 2
    assert [info.name for info in bundle.manifest.cached] == ["merged"]


def test_node_in_a_branch_depends_on_the_inputs_of_its_if(run, adapter):
    document = json.loads(run("explain", adapter, "--why", "e", "--json").out)
    assert document["operands"] == ["merged"]
    assert [step["value"] for step in document["path"]] == ["merged", "ab", "a"]
    assert document["holder"] == "If picked"
    assert document["inputs"] == ["x", "a", "b", "flag"]
    assert "in a subgraph of If picked" in run("explain", adapter, "--why", "e").out


def test_constant_nodes_have_a_decision(done, tiny, adapter):
    result = done("explain", tiny, "--why", "v")
    assert "v = Mul: constant" in result.out
    assert "folded" in result.out
    why = onnxfold.why(tiny, "v")
    assert (why.is_variable, why.decision.folded, why.inputs) == (False, True, [])
    why = onnxfold.why(adapter, "t", max_growth=0)
    assert (why.is_variable, why.decision.folded, why.op_after) == (False, False, "Transpose")
    assert "would grow" in why.decision.reason


def test_node_computed_from_shapes_is_removed(run, swin):
    gather = "/m/swin/encoder/layers.0/blocks.1/attention/Gather_1"
    result = run("explain", swin, "--why", gather)
    assert "not in the optimized model" in result.out
    assert "--runtime-const" not in result.out


def test_real_model_suggests_split(done, swin):
    result = done("explain", swin, "--why", "/m/classifier/Gemm")
    assert "logits = Gemm, node /m/classifier/Gemm: depends on the inputs" in result.out
    assert "more ..." in result.out
    assert "split --runtime-const pixel_values shows the gain" in result.out


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("merge", "did you mean 'merged'"),
        ("x", "is an input of the graph"),
        ("w", "is a weight in the file"),
        ("", "no node has the name ''"),
    ],
)
def test_unknown_names_are_one_error(run, adapter, name, part):
    result = run("explain", adapter, "--why", name)
    assert (result.code, result.out) == (2, "")
    assert part in result.err
    assert len(result.err.splitlines()) == 1
