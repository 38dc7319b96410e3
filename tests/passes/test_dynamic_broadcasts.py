"""Test that values that are constant up to a broadcast are computed on their bases."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, count_ops
from model_table import Way, cases, parse

import onnxfold
from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import facts_of

SIZES = (0, 1, 3)
"""The sizes of the dynamic axes. All dynamic axes have the same size in a run."""

MASK = """g (float[N,4] x) => (float[N,4] y) <float c = {3}>
    { s = Shape(x) k = ConstantOfShape(s) w = Sub(k, c) y = Max(w, x) }"""


def feeds_of(model: onnx.ModelProto, size: int) -> dict[str, Any]:
    random = np.random.default_rng(size)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value or size for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.standard_normal(shape, np.float32)
    return feeds


@pytest.mark.parametrize(
    ("graph", "way"), cases(Path(__file__).with_name("dynamic_broadcasts.txt"))
)
def test_dynamic_broadcasts(graph: str, way: Way) -> None:
    model = parse(graph)
    options = way.options()
    result = onnxfold.optimize(model, **options)
    onnx.checker.check_model(result)
    assert way.ops in (None, count_ops(ir.from_proto(result)))
    if "not run" in way.words:
        return
    for size in SIZES:
        if options.get("level") == 2:
            assert onnxfold.compare(model, result, feeds=feeds_of(model, size)).passed
        else:
            assert_same(model, result, feeds_of(model, size))


def test_the_level_of_nodes() -> None:
    model = ir.from_proto(parse(MASK))
    facts = facts_of(model)
    levels = {node.op_type: facts.level_of(node) for node in model.graph}
    assert levels == {
        "Shape": Constness.VARIABLE,
        "ConstantOfShape": Constness.BROADCAST,
        "Sub": Constness.BROADCAST,
        "Max": Constness.VARIABLE,
    }


def test_why_shows_that_only_sizes_depend_on_inputs() -> None:
    why = onnxfold.why(parse(MASK), "w")
    assert why.is_constant_per_batch
    assert "constant for each batch: only its sizes depend on the inputs" in str(why)
    assert not onnxfold.why(parse(MASK), "y").is_constant_per_batch


def test_runtime_constants_are_bases(tmp_path: Path) -> None:
    text = """g (float[N,4] x, float[4] r) => (float[N,4] y) <float c = {3}>
        { s = Shape(x) k = Expand(r, s) a = Neg(k) w = Mul(a, c) y = Add(w, x) }"""
    path = tmp_path / "model.onnx"
    onnx.save(parse(text), path)
    bundle = onnxfold.split(path, tmp_path / "bundle", runtime_constants=["r"])
    entry = onnx.load(tmp_path / "bundle" / "entry.onnx")
    assert [node.op_type for node in entry.graph.node] == ["Add"]
    x = np.ones((3, 4), np.float32)
    r = np.arange(4, dtype=np.float32)
    (found,) = onnxfold.Session(bundle).run(None, {"x": x, "r": r})
    np.testing.assert_array_equal(found, x - 3 * r)
