"""Reductions and the size-1 axes that they leave."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite import op, rule, values

x, ys, zs = values("x *ys *zs")

_reduce = op.any_of(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)

unsqueeze_of_reduced = rule(
    op("Unsqueeze")(_reduce(x, *ys, keepdims=0).named("reduced"), *zs)
    >> _reduce(x, *ys, keepdims=1),
    where=lambda x, reduced, result: (
        reduced.is_single_use
        and reduced.axes == result.axes
        # onnxruntime leaves axes counted from the end alone where a tensor has no elements
        and (x.has_elements or min(reduced.written_axes) >= 0)
    ),
    doc="Unsqueeze of the axes that a reduction removed becomes keepdims=1 of the reduction.",
    seen_in="silero-vad/silero_vad_16k_op15",
)

# -------------------------------------------------------------------- means of images

mean_of_image = rule(
    op("ReduceMean")(x, *ys, keepdims=1) >> op.GlobalAveragePool(x),
    where=lambda x, result: (
        x.dtype == ir.DataType.FLOAT
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
