"""Nodes that make no sense stay as they are: nothing is known of them, and nothing raises."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from onnxfold.passes.simplify import Simplify
from onnxfold.passes.symbolic_shapes import SymbolicShapes

HEADER = '<ir_version: 10, opset_import: ["" : {}]>'
NODES = [
    "y = Transpose<perm=[0, 5]>(x)",
    "y = Transpose<perm=[1, 1]>(x)",
    "y = Transpose<perm=[0]>(x)",
    'y = Einsum<equation="i->k">(x)',
    'y = Einsum<equation="ij,jk->ik">(x)',
    "y = Einsum(x)",
    "y = SequenceEmpty<dtype=99>()",
    "e = Shape(x) s = Size(x) y = Expand(x, s)",
    "s = Size(x) y = ConstantOfShape(s)",
    "s = Size(x) y = Tile(x, s)",
    "s = Size(x) y = Reshape(x, s)",
    "y = Concat<axis=9>(x, x)",
    "y = Concat(x, x)",
    "y = Cast<to=999>(x)",
    "y = Cast(x)",
    "y = Gather<axis=7>(x, x)",
    "y = Split<axis=-9>(x)",
    "y = Flatten<axis=-9>(x)",
    "y = Softmax<axis=99>(x)",
    "y = Squeeze(x, x)",
    "y = Unsqueeze(x)",
    "y = Conv<group=0>(x, x)",
    "y = ConvTranspose<group=0>(x, x)",
    "y = MaxPool(x)",
    "y = MaxPool<kernel_shape=[0]>(x)",
    "y = MaxPool<kernel_shape=[2], strides=[0]>(x)",
    "y = AveragePool<kernel_shape=[2,2], pads=[1]>(x)",
    "y = If(c)",
    "y = Loop()",
    "y = Scan(x)",
    "y = Resize(x)",
    "y = Add(x)",
    "y = Where(x, x)",
    "y = Relu()",
    "y, z = Relu(x)",
    "y = SplitToSequence<axis=9>(x)",
    "s = SequenceConstruct() y = ConcatFromSequence(s)",
    "y = ConcatFromSequence<axis=3>(x)",
    "y = Range(x)",
    "y = TopK(x)",
    "y = OneHot(x)",
    "y = Pad(x)",
    "y = EyeLike<dtype=77>(x)",
    "y = LSTM(x)",
    "y = Slice(x)",
    "y = Slice(x, x, x, x, x)",
    "y = Shape<start=-9223372036854775808>(x)",
    "y = ReduceSum<axes=[9]>(x)",
    "y = ArgMax<axis=9>(x)",
    "y = Constant()",
    "y = Identity()",
    "y = CastLike(x)",
    "y = Dropout()",
    "y = BatchNormalization(x)",
    "y = Gemm(x)",
    "y = MatMul(x)",
    "y = Clip()",
    "y = Cast<to=3.5>(x)",
    'y = Transpose<perm="a">(x)',
    "y = Transpose<perm=3>(x)",
    'y = Reshape<allowzero="x">(x, x)',
    'y = LeakyRelu<alpha="u">(x)',
    'y = Concat<axis="q">(x,x)',
    "y = Softmax<axis=[1,2]>(x)",
    "y = MaxPool<kernel_shape=3>(x)",
    'y = Split<num_outputs="k">(x)',
    "y = DepthToSpace<blocksize=0>(x)",
    "y = SpaceToDepth<blocksize=0>(x)",
    "y = Einsum<equation=3>(x)",
]


@pytest.mark.parametrize("opset", [11, 13, 21])
def test_they_are_left_alone(opset):
    for nodes in NODES:
        text = f"{HEADER.format(opset)} g (float[2,N] x, bool c) => (y) {{ {nodes} }}"
        model = ir.from_proto(onnx.parser.parse_model(text))
        before = [node.op_type for node in model.graph]
        for step in (SymbolicShapes(), Simplify()):
            step(model)
        assert [node.op_type for node in model.graph][-1:] == before[-1:], nodes
