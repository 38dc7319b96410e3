"""Expected values of a distribution, which detectors compute of the sides of a box."""

from __future__ import annotations

import onnx_ir as ir
from onnxfold.rules.convolutions import is_unpadded

from onnxfold.rewrite import constant, constants, op, rule, values

x = values("x")
w = constants("w")

_conv = op.any_of("Conv")
_SWAPPED = (0, 2, 1, 3)

expected_value = rule(
    _conv(op.Softmax(op.Transpose(x, perm=_SWAPPED), axis=1), w)
    >> op.Transpose(
        op.MatMul(op.Reshape(w, constant([1, -1])), op.Softmax(x, axis=2)), perm=_SWAPPED
    ),
    # the convolution adds up its channels with one weight each, at every place
    where=lambda x, w, result: (
        x.dtype == ir.DataType.FLOAT
        and w.sizes[0] == 1
        and w.sizes[2:] == (1, 1)
        and result.attribute("group") == 1
        and all(stride == 1 for stride in result.attribute("strides") or ())
        and is_unpadded(result)
    ),
    opset=(13, None),
    inexact=True,
    seen_in="nudenet/320n",
    doc="A 1x1 convolution of a transposed Softmax, as in YOLOv8's boxes, becomes a product of"
    " matrices, which takes a quarter of the time on onnxruntime.",
)
