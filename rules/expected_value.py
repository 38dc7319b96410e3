"""Expected values of a distribution, which detectors compute of the sides of a box."""

from __future__ import annotations

import onnx_ir as ir
from onnxfold.rules.convolutions import is_unpadded

from onnxfold.rewrite import Matched, constant, constants, dtype_of, given, op, rule, values

x = values("x")
w = constants("w")

_conv = op("Conv")


@given
def _is_weighted_sum(conv: Matched, w: Matched) -> bool:
    """The convolution adds up its channels with one weight each, at every place."""
    strides = conv.attribute("strides") or ()
    return (
        w.sizes[0] == 1
        and w.sizes[2:] == (1, 1)
        and conv.attribute("group") == 1
        and all(stride == 1 for stride in strides)
        and is_unpadded(conv)
    )


_SWAPPED = (0, 2, 1, 3)

expected_value = rule(
    _conv(op.Softmax(op.Transpose(x, perm=_SWAPPED), axis=1), w)
    >> op.Transpose(
        op.MatMul(op.Reshape(w, constant([1, -1])), op.Softmax(x, axis=2)), perm=_SWAPPED
    ),
    where=_is_weighted_sum(_conv) & (dtype_of(x) == ir.DataType.FLOAT),
    opset=(13, None),
    inexact=True,
    seen_in="nudenet/320n",
    doc="The expected side of a box, as YOLOv8 and its successors compute it: a product instead of"
    " a transposed Softmax and a convolution, which take four times as long on onnxruntime.",
)
