"""Test facts about values that depend on ops that ONNX does not define."""

import logging
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from fact_check import FactCheck
from model_table import ROOT, with_weights
from symbolic_check import floats, inputs, rewrite
from test_real_shapes import MODELS

from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.ir.symbolic import UNKNOWN

HEADER = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "other" : 1]>"""


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def optimized(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return the model that onnxruntime's optimizer writes, without CPU-specific optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


ATTENTION = """g (float[B,S,32] x) => (float[B,S,32] y)
<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[2] heads = {4, 8},
 int64[1] rest = {-1}, float third = {0.3}>
{
  q = MatMul(x, w)  s = Shape(x)  b = Gather(s, zero)  n = Gather(s, one)
  b1 = Unsqueeze(b, first)  n1 = Unsqueeze(n, first)  split = Concat<axis=0>(b1, n1, heads)
  h = Reshape(q, split)  t = Transpose<perm=[0,2,1,3]>(h)  k = Transpose<perm=[0,1,3,2]>(t)
  p = MatMul(t, k)  l = Mul(p, third)  a = Softmax<axis=-1>(l)  o = MatMul(a, t)
  u = Transpose<perm=[0,2,1,3]>(o)
  s2 = Shape(u)  b2 = Gather(s2, zero)  n2 = Gather(s2, one)
  b3 = Unsqueeze(b2, first)  n3 = Unsqueeze(n2, first)  join = Concat<axis=0>(b3, n3, rest)
  j = Reshape(u, join)  d = MatMul(j, w)  e = Add(d, x)  y = LayerNormalization<axis=-1>(e, g, c)
}"""


def attention() -> onnx.ModelProto:
    return with_weights(parse(ATTENTION), w=floats(32, 32), g=floats(32), c=floats(32))


def test_attention_fused_by_onnxruntime(tmp_path):
    model = optimized(attention(), tmp_path / "o.onnx")
    fused = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
    assert "FusedMatMul" in fused
    rewritten = rewrite(model)
    assert not rewritten.ops.keys() & {"Shape", "Gather", "Concat", "Unsqueeze"}
    rewritten.check(*inputs([(2, 3, 32), (1, 1, 32), (3, 7, 32), (0, 4, 32)]))


@pytest.mark.parametrize("path", MODELS)
def test_real_models_optimized_by_onnxruntime(path, tmp_path):
    model = optimized(onnx.load(ROOT / path), tmp_path / "o.onnx")
    check = FactCheck(model)
    for feeds in MODELS[path]:
        assert check.check(feeds) > 5
    rewrite(model, is_checked=False).check(*MODELS[path])


IMAGE = """g (float[B,3,H,W] x) => (float[B,M] y)
<int64[1] first = {0}, int64[1] rest = {-1}, int64[1] two = {2}, int64[1] four = {4},
 float[4] half = {1, 1, 0.5, 0.5}, float[0] roi = {}>
{
  f = com.microsoft.FusedConv<activation="Relu", pads=[1,1,1,1], strides=[2,2]>(x, w)
  d = com.microsoft.FusedConv<activation="Relu", pads=[1,1,1,1], strides=[2,2]>(f, v)
  s = Shape(f)  hw = Slice(s, two, four)  t = Shape(d)  bc = Slice(t, first, two)
  to = Concat<axis=0>(bc, hw)  u = Resize<mode="nearest">(d, roi, , to)  z = Add(u, f)
  q = Shape(z)  b = Gather(q, first)  r = Concat<axis=0>(b, rest)  y = Reshape(z, r)
}"""


def test_sizes_after_a_fused_convolution_are_expressions():
    """The sum has the sizes of its second operand, so the sizes of the Resize are not needed."""
    model = with_weights(parse(IMAGE), w=floats(4, 3, 3, 3), v=floats(4, 4, 3, 3))
    check = FactCheck(model)
    feeds = inputs([(1, 3, 8, 8), (2, 3, 9, 13), (1, 3, 5, 16)])
    for feed in feeds:
        assert check.check(feed) > 20
    rewritten = rewrite(model)
    assert rewritten.ops["Gather"] == 0
    assert rewritten.ops["Shape"] <= 1
    rewritten.check(*feeds)


OTHERS = """g (float[B,S,32] x, float[4] w) => (float z, int64[4] s)
<int64[4] to = {2, 3, 4, 8}, int64[3] rest = {0, 4, -1}>
{
  c = other.Twist(x)  a = Add(c, w)  r = Reshape(c, to)  f = Unsqueeze(r, one)
  m = MatMul(x, c)  v = Reshape(c, rest)  k = Cast<to=10>(c)
  z = Relu(r)  s = Shape(r)
}"""


def test_facts_about_values_after_an_unknown_op():
    model = with_weights(parse(OTHERS), one=[0])
    opened = storage.from_proto(model)
    analysis = ModelFacts(opened).types
    facts = {v.name: analysis.of(v) for node in opened.graph for v in node.outputs}
    assert facts["c"] is UNKNOWN
    assert (facts["m"].dtype.name, facts["m"].shape) == ("FLOAT", None)
    assert facts["r"].shape == facts["z"].shape == (2, 3, 4, 8)
    assert facts["f"].shape == (1, 2, 3, 4, 8)
    assert facts["s"].known.tolist() == [2, 3, 4, 8]
    assert facts["k"].dtype.name == "FLOAT16"
    assert facts["v"].rank == 3


def test_results_of_invalid_nodes_are_unknown(caplog):
    """onnxruntime rejects the operands or attributes of these nodes, or does not have the op."""
    caplog.set_level(logging.WARNING)
    refused = [
        "c = com.microsoft.Attention<num_heads=0>(x)",
        "c = com.microsoft.QGemm(x, x)",
        "c = com.microsoft.GatherND(x, x)",
        "c = com.microsoft.MatMulNBits<K=32>(x, x)",
        "c = com.microsoft.QLinearConcat(x)",
        "c = com.microsoft.NoSuchOp(x)",
    ]
    for text in refused:
        model = parse(f"g (float[B,S,32] x) => (float c) {{ {text} }}")
        opened = storage.from_proto(model)
        assert ModelFacts(opened).types.of(opened.graph.outputs[0]).shape is None, text
    assert not caplog.records
