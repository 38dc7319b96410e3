"""Reductions and the size-1 axes that they leave."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.onnx_ir_private import uses
from onnxfold.rewrite import (
    Matched,
    axes,
    dtype_of,
    given,
    op,
    rank_of,
    result,
    rule,
    single_use,
    values,
)

x, ys, zs = values("x *ys *zs")

_unsqueeze = op("Unsqueeze")
_reduce = op.any_of(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)


@given
def _counts_axes(reduce: Matched, x: Matched) -> bool:
    """Onnxruntime leaves axes counted from the end alone where a tensor has no elements."""
    is_positive = x.facts.types.algebra.is_positive
    shape = x.facts.types.of(x.value).shape
    if shape is not None and all(map(is_positive, shape)):
        return True
    return all(axis >= 0 for axis in reduce.written_axes)


_dropping = _reduce(x, *ys, keepdims=0)

unsqueeze_of_reduced = rule(
    _unsqueeze(_dropping, *zs) >> _reduce(x, *ys, keepdims=1),
    where=single_use(_dropping) & (axes(_unsqueeze) == axes(_reduce)) & _counts_axes(_reduce),
    doc="A reduction can keep the reduced axes itself.",
    seen_in="silero-vad/silero_vad_16k_op15",
)

# -------------------------------------------------------------------- means of images


@given
def _is_convolved(mean: Matched) -> bool:
    """A convolution reads the mean, which may have got an activation by then."""
    return any(use.node.op_type in ("Conv", "FusedConv") for use in uses(mean.value))


_mean = op("ReduceMean")

mean_of_image = rule(
    _mean(x, *ys, keepdims=1) >> op.GlobalAveragePool(x),
    where=(dtype_of(x) == ir.DataType.FLOAT)
    & (rank_of(x) == 4)
    & (axes(_mean) == (2, 3))
    & _is_convolved(result),
    inexact=True,
    doc="The mean over an image is a GlobalAveragePool, as in PP-OCRv6's squeeze-and-excitation:"
    " onnxruntime computes it in the layout of the convolutions around it.",
    seen_in="rapidocr/PP-OCRv6_det_small",
)
