"""Nodes that no runtime computes: they stay, and the reason is recorded."""

from __future__ import annotations

import onnx
import pytest

import onnxfold

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
INVALID = (
    "y = Transpose<perm = [0, 7]>(m)",
    "y = Transpose<perm = [0, 0]>(m)",
    'y = Einsum<equation = "i->k">(v)',
    'y = Einsum<equation = "ij,jk">(v)',
    "y = Cast<to = 0>(v)",
    "y = Cast<to = 99>(v)",
    "y = Cast<to = -1>(v)",
    "y = Cast<to = 2147483647>(v)",
    "s = SplitToSequence(v) y = Slice(s, i, i)",
    "s = SequenceEmpty<dtype = 99>() y = SequenceLength(s)",
    "y = ConvTranspose<group = 0>(q, q)",
    "y = Conv<group = -1>(q, q)",
    "y = MaxPool<kernel_shape: ints = []>(q)",
    "y = MaxPool<kernel_shape = [0, 0]>(q)",
    "y = AveragePool<kernel_shape = [9, 9], strides = [0, 0]>(q)",
    "y = Expand(v, m)",
    "y = Expand(v, z)",
    "y = Reshape(v, negative)",
    "y = Tile(v, negative)",
    "y = ConstantOfShape(negative)",
    "y = Range(z, z, z)",
    "t = Range(z, most, one) y = Neg(t)",
    "y = Gather<axis = 9>(v, i)",
    "y = Concat<axis = 9>(v, v)",
    "y = Split<num_outputs = -3>(v)",
    "y = Squeeze(v, huge)",
    "y = Unsqueeze(v, huge)",
    "y = Slice(v, huge, huge, huge, z)",
    "y = ReduceSum(v, huge)",
    "y = Softmax<axis = 9>(v)",
    "y = Flatten<axis = 9>(v)",
    "y, w = TopK(v, huge)",
    "y = OneHot(huge, z, v)",
    "y = Pad(v, huge)",
    "y = Resize(v, , , huge)",
    "t = Resize(v, , , large) s = ConstantOfShape(t) y = Identity(s)",
    "y = CumSum(v, huge)",
    "y = DepthToSpace<blocksize = 0>(q)",
    "y = SpaceToDepth<blocksize = 0>(q)",
    "y = EyeLike<dtype = 99>(m)",
    "y = BitShift<direction = \"UP\">(huge, huge)",
    "y = Trilu(v)",
    "y = ScatterND(v, huge, v)",
    "y = GatherND<batch_dims = 9>(m, m)",
    "y = LSTM<hidden_size = 0>(q, q, q)",
)  # fmt: skip


@pytest.mark.parametrize("body", INVALID)
@pytest.mark.parametrize("constant", [True, False])
def test_what_nobody_computes_stays(body: str, constant: bool) -> None:
    values = """float[2] v = {1, 2}, float[1, 2] m = {1, 2}, float[1, 1, 2, 2] q = {1, 2, 3, 4},
        int64[1] i = {0}, int64 z = {0},
        int64[1] large = {4611686018427387904}, int64 most = {9223372036854775807},
        int64 one = {1}, int64[1] negative = {-5},
        int64[1] huge = {9223372036854775807}"""
    inputs = "float[1] unused"
    if not constant:
        values, inputs = values.split(", float[1, 1", 1)[1], "float[2] v, float[1, 2] m"
        values = "float[1, 1" + values
    text = f"{HEAD} g ({inputs}) => (float[k] y) <{values}> {{ {body} }}"
    model = onnx.parser.parse_model(text)
    after = onnxfold.optimize(model, level=2)
    assert [n.op_type for n in after.graph.node][-1] in body
