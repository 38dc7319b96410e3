"""The first value on which two models differ is the one where the difference was planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from mutants.mutations import Impossible, Mutant
from mutants.sources import opened
from onnx import numpy_helper
from plants import PLANTS, WRAPS

from onnxfold.compare import bisect, compare, variants

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
def test_the_planted_node_is_found(wrap, seed) -> None:
    a, b, feeds, node = planted(seed, wrap)
    result = compare(a, b, feeds=feeds, exact=True, bisect=True)
    found = result.first_difference
    assert found is not None and found.nodes_a and found.nodes_b, result.notes
    # what is inside a function gets a longer name when the call is taken apart
    assert any(name and name in found.nodes_a[-1].outputs[0] for name in node.output), str(found)
    assert found.runs <= 12


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
    assert document["value"] == "logits" and document["nodes_b"][-1]["op"] == "Gemm"
    with pytest.raises(AssertionError, match="the first value that differs"):
        result.assert_equal()


def test_a_large_model_is_written_once(monkeypatch) -> None:
    monkeypatch.setattr(variants, "_IN_MEMORY", 1000)
    found = compare(SWIN, changed_swin(), bisect=True).first_difference
    assert found is not None and found.value == "logits"


def test_models_with_external_data(tmp_path) -> None:
    for name, model in (("a", onnx.load(SWIN)), ("b", changed_swin())):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    result = compare(tmp_path / "a" / "model.onnx", tmp_path / "b" / "model.onnx", bisect=True)
    found = result.first_difference
    assert found is not None and found.value == "logits", result.notes


def test_values_are_looked_at_in_groups(monkeypatch) -> None:
    monkeypatch.setattr(bisect, "_GROUP", 1000)
    found = compare(SWIN, changed_swin(), bisect=True).first_difference
    assert found is not None and found.value == "logits"
    assert 6 < found.runs <= 2 * bisect._GROUPS + 3


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
    assert [node.op for node in found.nodes_a] == ["Constant", "Exp"] and not found.nodes_b
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


def test_the_turn_of_a_loop_is_told(parsed) -> None:
    text = """g (float[2] x) => (float[2] y) {{
        turns = Constant<value = int64 {{9}}>()
        y = Loop<body = b (int64 i, bool going, float[2] s) => (bool on, float[2] t) {{
            on = Identity(going)
            k = Cast<to = 1>(i)
            limit = Constant<value = float {{{}}}>()
            m = Min(k, limit)
            t = Add(s, m)
        }}>(turns, , x) }}"""
    result = compare(parsed(text.format(7)), parsed(text.format(5)), bisect=True)
    found = result.first_difference
    assert found is not None and found.value == "limit"
    assert found.where == ("turn 6 of Loop 'y'",)


def test_a_scan_is_entered(parsed) -> None:
    text = """g (float[3] x, float s) => (float t, float[3] y) {{
        t, y = Scan<num_scan_inputs = 1, body = b (float a, float v) => (float c, float w) {{
            c = Add(a, v)
            w = {}(c)
        }}>(s, x) }}"""
    feeds = {"x": np.array([1, 2, -5], np.float32), "s": np.float32(0.5)}
    result = compare(
        parsed(text.format("Abs")), parsed(text.format("Relu")), feeds=feeds, bisect=True
    )
    found = result.first_difference
    assert found is not None and found.value == "w"
    assert found.where == ("turn 2 of Scan 't'",)
