"""Test rules for the target onnxruntime, and how onnxruntime optimizes the rewritten models."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.api.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.testing.model_text import Example

GELU = """(float[N,3] x) <float r = {1.4142135}, float one = {1}, float half = {0.5}>
    s = Div(x, r) e = Erf(s) p = Add(e, one) u = Mul(x, p) y = Mul(u, half)"""
SUM = """(float[2,3,4] x, float[2,3,4] z) <float[4] w, float[4] b>
    t = Add(x, z) y = LayerNormalization<epsilon=0.001>(t, w, b)"""
PACKED = """(float[B,S,6] x)
    <float[6,8] wq, float[6,8] wk, float[6,8] wv, float[8] bq, float[8] bk, float[8] bv>
    q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
    q = Add(q0, bq) k = Add(k0, bk) v = Add(v0, bv)
    y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.3>(q, k, v)"""


@pytest.mark.parametrize("target, fired", [(None, 0), ("onnxruntime", 1)])
def test_rules_fire_only_for_their_target(target, fired):
    model = ir.from_proto(Example.of(GELU).instance.model)
    simplify = Simplify(options=Options(level=2, target=target))
    simplify(model)
    assert simplify.report.counts["erf_gelu"] == fired
    assert model.opset_imports.get("com.microsoft", 0) == fired


def test_between_all_other_passes(tmp_path):
    """onnx infers no types for com.microsoft, so the types of some later values are unknown."""
    swin = Path(__file__).parents[2] / "models" / "swin.onnx"
    report = onnxfold.optimize_file(
        swin, tmp_path / "out.onnx", level=2, target="onnxruntime", check=1
    )
    assert report.rewrites["erf_gelu"] == 4
    assert report.check.passed


def test_onnxruntime_does_not_fuse_sums(tmp_path):
    """onnxruntime fuses an Add into SkipLayerNormalization, but not a Sum."""
    original = Example.of(SUM).instance.model
    rewritten = onnxfold.optimize(original, level=2, target="onnxruntime")
    ops = [ops_optimized_by_onnxruntime(each, tmp_path) for each in (original, rewritten)]
    assert ops == [["SkipLayerNormalization"], ["Sum", "LayerNormalization"]]


def ops_optimized_by_onnxruntime(model, folder):
    options = ort.SessionOptions()
    options.optimized_model_filepath = f"{folder}/optimized.onnx"
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_packed_weights_replace_the_three_weights(tmp_path):
    original = Example.of(PACKED).instance.model
    onnx.save(original, tmp_path / "a.onnx")
    report = onnxfold.optimize_file(
        tmp_path / "a.onnx", tmp_path / "b.onnx", level=2, target="onnxruntime"
    )
    assert report.bytes_after < report.bytes_before
    packed = onnx.load(tmp_path / "b.onnx")
    assert [node.op_type for node in packed.graph.node] == ["Attention"]
    weight = next(t for t in packed.graph.initializer if len(t.dims) == 2)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in original.graph.initializer}
    expected = np.concatenate([weights["wq"], weights["wk"], weights["wv"]], axis=1)
    assert np.array_equal(onnx.numpy_helper.to_array(weight), expected)
