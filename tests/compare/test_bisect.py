"""The first value on which two models differ is the one where the difference was planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from mutants.mutations import Impossible, Mutant
from mutants.sources import opened
from onnx import numpy_helper
from plants import PLANTS, WRAPS, nodes_within

from onnxfold.compare import compare

SWIN = Path(__file__).parents[2] / "models" / "swin.onnx"


def planted(seed: int, wrap):
    """A model, the same with a difference, the feeds, and the node that differs."""
    model, feeds = opened(SWIN)
    for attempt in range(seed, seed + 100):
        m = Mutant(model, feeds[:1], np.random.default_rng(attempt))
        try:
            if wrap is not None:
                wrap(m)
            original = onnx.ModelProto()
            original.CopyFrom(m.model)
            node = PLANTS[attempt % len(PLANTS)](m)
            onnx.checker.check_model(m.model)
        except (Impossible, onnx.checker.ValidationError):
            continue
        result = compare(original, m.model, feeds=m.feeds[0], exact=True)
        if not result.problems and not result.passed:
            return original, m.model, m.feeds[0], node
    raise AssertionError("no such difference reaches an output")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("wrap", WRAPS, ids=lambda w: w.__name__ if w else "main_graph")
def test_the_node_of_the_main_graph_that_runs_the_planted_one_is_found(wrap, seed) -> None:
    a, b, feeds, node = planted(seed, wrap)
    result = compare(a, b, feeds=feeds, exact=True, bisect=True)
    found = result.first_difference
    assert found is not None and found.nodes_a and found.nodes_b, result.notes
    assert found.nodes_a[-1].startswith(f"{', '.join(holder(b, node).output)} = "), str(found)
    assert found.runs <= 5


def holder(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """The node of the main graph that runs a node: itself, or one with a body or function."""
    bodies = {function.name: list(function.node) for function in model.functions}
    for main in model.graph.node:
        inside = onnx.GraphProto(node=[main, *bodies.get(main.op_type, ())])
        if any(each.output == node.output for each in nodes_within(inside)):
            return main
    raise AssertionError("the node is nowhere")


def changed_swin() -> onnx.ModelProto:
    model = onnx.load(SWIN)
    weight = next(t for t in model.graph.initializer if t.name.endswith("classifier.bias"))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    return model


def test_what_is_told() -> None:
    result = compare(SWIN, changed_swin(), bisect=True)
    found = result.first_difference
    assert found is not None
    text = str(found)
    assert "the first value that differs is 'logits'" in text
    assert "Gemm(" in text and "classifier.bias: " in text and ": equal" in text
    assert "10 of 10 elements differ" in text
    document = result.to_dict()["first_difference"]
    assert document["value"] == "logits" and "= Gemm(" in document["nodes_b"][-1]
    with pytest.raises(AssertionError, match="the first value that differs"):
        result.assert_equal()


def test_models_with_external_data(tmp_path) -> None:
    for name, model in (("a", onnx.load(SWIN)), ("b", changed_swin())):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    result = compare(tmp_path / "a" / "model.onnx", tmp_path / "b" / "model.onnx", bisect=True)
    found = result.first_difference
    assert found is not None and found.value == "logits", result.notes


def test_no_run_gives_out_all_large_values(parsed) -> None:
    """The values take 16 MB each, and 20 of them would be given out at once."""
    chain = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(20))
    text = "g (float[4194304] v0) => (float[4194304] y) {{ " + chain + " y = {}(v20) }}"
    result = compare(parsed(text.format("Neg")), parsed(text.format("Abs")), bisect=True)
    found = result.first_difference
    assert found is not None and found.value == "y"
    assert 9 <= found.runs <= 17


def test_a_wrong_fold_is_found_by_name(parsed) -> None:
    a = parsed(
        "g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {1, 2}>() "
        "d = Exp(c) e = Add(x, d) y = Neg(e) }"
    )
    b = parsed(
        "g (float[2] x) => (float[2] y) <float[2] d = {2.75, 7.5}> { e = Add(x, d) y = Neg(e) }"
    )
    found = compare(a, b, bisect=True).first_difference
    assert found is not None and found.value == "d"
    assert found.nodes_a == ["c = Constant(value=float[2])", "d = Exp(c)"] and not found.nodes_b
    assert "stores it" in str(found)


def test_an_output_that_is_a_constant_is_looked_at(parsed) -> None:
    text = (
        "g (float[2] x) => (float[2] y) <int64[1] s = {{2}}> "
        "{{ c = Constant<value = float {{{}}}>() d = Exp(c) y = Expand(d, s) }}"
    )
    found = compare(parsed(text.format(1)), parsed(text.format(2)), bisect=True).first_difference
    assert found is not None and found.value == "c"


def test_random_values_are_no_difference(parsed) -> None:
    text = (
        "g (float[2] x) => (float[2] y, float[2] z) {{ r = RandomNormal<shape = [2]>() "
        "s = Mul(x, r) y = Sub(s, s) z = {}(x) }}"
    )
    found = compare(parsed(text.format("Neg")), parsed(text.format("Abs")), bisect=True)
    assert found.first_difference is not None and found.first_difference.value == "z"


def test_nothing_is_looked_for_in_equal_models() -> None:
    result = compare(SWIN, SWIN, bisect=True)
    assert result.equal and result.first_difference is None and not result.notes
