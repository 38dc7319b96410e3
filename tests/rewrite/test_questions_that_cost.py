"""Test that conditions of rules do not compute constants for which onnxruntime is required."""

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from model_table import parse, saved
from processes import python

from onnxfold.analysis.facts import ModelFacts
from onnxfold.api.options import Options
from onnxfold.ir import storage
from onnxfold.passes.simplify import Simplify

QUANTIZED = """g (float[N,2] x) => (float[N,3] y)
<int8[2,3] w = {1, 2, 3, 4, 5, 6}, int32[3] b = {0, 0, 0}, float s = {0.5}, int8 z = {0}>
{ d = DequantizeLinear(w, s, z)  c = DequantizeLinear(b, s)  y = Gemm(x, d, c) }"""

OPTIMIZE = """
import sys, onnxfold
onnxfold.optimize_file(sys.argv[1], sys.argv[2])
sys.exit("onnxruntime" in sys.modules)
"""


def test_a_quantized_model_is_optimized_without_onnxruntime(tmp_path):
    path = saved(QUANTIZED, tmp_path / "model.onnx", 17)
    python("-c", OPTIMIZE, path, tmp_path / "out.onnx")
    ops = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert ops.count("DequantizeLinear") == 2


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("k = Sub(b, b)", True),  # a NumPy kernel computes k
        ("k = Add(b, b)", True),
        ("k = Expand(b, n)", True),
        ("k = DequantizeLinear(b, s)", None),  # k is all zeros, but only onnxruntime can compute k
    ],
)
def test_all_equal_of_a_computed_constant(text, answer):
    text = f"""g (float x) => (float y, float k)
        <int32[3] b = {{0, 0, 0}}, int64[2] n = {{2, 3}}, float s = {{0.5}}>
        {{ y = Neg(x)  {text} }}"""
    opened = storage.from_proto(parse(text, 17))
    assert ModelFacts(opened).constness.all_equal(opened.graph.outputs[1], 0) is answer


@pytest.mark.parametrize("links", [200, 800])
def test_one_rewrite_per_link(links):
    """Rules do not rewrite the products of constants; constant propagation folds the products."""
    weights = ", ".join(f"float c{k} = {{{1 + 1 / (k + 2)}}}" for k in range(links))
    nodes = " ".join(f"m{k + 1} = Mul(m{k}, c{k})" for k in range(links))
    text = f"""g (float[4] m0) => (float[4] m{links}) <{weights}> {{ {nodes} }}"""
    simplify = Simplify(options=Options(level=2))
    simplify(ir.from_proto(parse(text, 17)))
    assert simplify.report.counts == {"mul_mul": links - 1}
    assert simplify.report.loops == []
    assert simplify.report.visits < 5 * links
