"""Never in the way of onnxruntime: what it runs gets fewer by each level, and stays fused."""

import functools
from pathlib import Path

import pytest

import onnxfold
from onnxfold.bench.measuring import Benched, optimized_ops

ROOT = Path(__file__).parents[2]
MODELS = (ROOT / "models" / "swin.onnx", *sorted((ROOT / "tests" / "data").glob("*.onnx")))
LEVELS = ({"level": 1}, {"level": 2}, {"level": 2, "target": "onnxruntime"})


@pytest.fixture(scope="module")
def ops_at_each_level(tmp_path_factory):
    @functools.cache
    def made(model):
        folder, paths = tmp_path_factory.mktemp("levels"), [model]
        for k, options in enumerate(LEVELS):
            paths.append(folder / f"{k}.onnx")
            onnxfold.optimize_file(model, paths[-1], **options)
        return [optimized_ops(Benched(str(path)), ["CPUExecutionProvider"]) for path in paths]

    return made


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_nodes_get_fewer(model, ops_at_each_level):
    counts = [sum(ops.values()) for ops in ops_at_each_level(model)]
    assert counts == sorted(counts, reverse=True)


def test_what_was_fused_stays_fused(ops_at_each_level):
    """At level 2 the scales of attention are in the weights: no product has one any more."""
    original, *levels = ops_at_each_level(MODELS[0])
    fused = {op: count for op, count in original.items() if op.startswith("com.microsoft::")}
    exact, inexact, _ = levels
    assert "com.microsoft::Gelu" in fused and fused == {op: exact.get(op) for op in fused}
    del fused["com.microsoft::FusedMatMul"]
    assert fused == {op: inexact.get(op) for op in fused}
    products = ("MatMul", "com.microsoft::FusedMatMul", "Gemm")
    assert sum(inexact.get(op, 0) for op in products) == sum(exact.get(op, 0) for op in products)
