"""Merge adjacent ops into the weights of convolutions and matrix products.

The merged ops are scales, shifts, and normalizations. A scaled weight changes the number of
roundings, so most rules are for level 2. New weights are computed in float64 and rounded once.
Adding a bias to a convolution without one is exact: onnxruntime's float32 CPU kernels of Conv and
ConvTranspose add the bias to the finished sum of each element, like an Add after the convolution.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import *
from onnxfold.rewrite.conditions import Term

_scales = op.any_of("Mul", "Div")
_shifts = op.any_of("Add", "Sub")


def _as_double(value: Any) -> Any:
    """Return the cast of a constant to float64, so that the new weight is rounded only once."""
    return op.Cast(value, to=int(DOUBLE))


_BYTES_OF_NODES = 512
"""Approximate bytes that the removed nodes of a match take in the file."""


@computed
def fits_in_freed_bytes(elements: int, *constants: Matched | None) -> bool:
    """Return whether new constants are not larger than the constants and nodes that become unused.

    The new constants must be float32 or float64: scaling a float16 weight would visibly change
    results. A weight without elements is not replaced, because 0 has another meaning in the shape
    of a Reshape.

    Args:
        elements: The number of elements of the new constants.
        constants: The constants of the matched nodes; None for omitted ones. The first constant has
            the dtype of the new constants. Constants with other consumers do not become unused.
    """
    matched = [each for each in constants if each is not None]
    dtype = matched[0].dtype
    if dtype not in (FLOAT, DOUBLE) or matched[0].size == 0:
        return False
    freed = sum(each.freed_bytes for each in matched)
    return elements * dtype.itemsize <= freed + _BYTES_OF_NODES


def _along_channels(c: Any, w: Constant, product: Value) -> Any:
    """Return ``c`` reshaped to broadcast along one axis of the weight.

    This axis of the weight becomes the channels or columns of the product.
    """
    axis = (product.op_type != "Conv") & (product.attribute("transB", 0) == 0)
    shape = (1,) * axis + (-1,) + (1,) * (w.rank - axis - 1)
    return op.Reshape(op.Reshape(c, constant([-1])), constant(shape))


def _scaled_weight(w: Constant, c: Constant, product: Value) -> Any:
    return op.Cast(_scales(_as_double(w), _along_channels(_as_double(c), w, product)), to=w.dtype)


def _has_vector_bias(b: Constant) -> Term:
    """Return the condition that a bias is omitted, or is one number, a vector or a single row."""
    return b.is_omitted | (b.rank < 2) | (b.shape[0] == 1)


def _is_scalable(product: Value) -> Term:
    return product.is_single_use & (
        (product.op_type != "ConvTranspose") | (product.attribute("group") == 1)
    )


@rule(opset=7, inexact=True, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def conv_batch_normalization(
    x,
    w: Constant,
    b: Constant,
    scale: Constant,
    shift: Constant,
    mean: Constant,
    variance: Constant,
    e: Attribute,
):
    """((x @ w + b) - mean) * f + shift == x @ (w * f) + (b - mean) * f + shift, with f = scale /
    sqrt(variance + e): a BatchNormalization is merged into a Conv, ConvTranspose or Gemm.
    """
    biased = op.any_of("Gemm", "Conv", "ConvTranspose")
    product = biased(x, w, optional(b))
    factor = op.Div(_as_double(scale), op.Sqrt(op.Add(_as_double(variance), constant(e, DOUBLE))))
    shift_of_mean = op.Sub(_as_double(shift), op.Mul(_as_double(mean), factor))
    bias = op.Mul(_as_double(b), _as_double(constant(product.attribute("beta", 1.0), FLOAT)))
    new_weight = op.Cast(op.Mul(_as_double(w), _along_channels(factor, w, product)), to=w.dtype)
    new_bias = any_of(op.Add(shift_of_mean, op.Mul(bias, factor)), shift_of_mean)
    return op.BatchNormalization(
        product, scale, shift, mean, variance, epsilon=e, momentum=anything
    ) >> biased(x, new_weight, op.Cast(new_bias, to=w.dtype), beta=None), where(
        _has_vector_bias(b),
        _is_scalable(product),
        # before opset 14, a BatchNormalization with more outputs is one in training
        result.has_one_output,
        fits_in_freed_bytes(w.size + scale.size, w, b.or_else(None), scale, shift, mean, variance),
    )


@rule(opset=7, inexact=True, benefit=1, seen_in="models/lora/torchscript")
def product_scaled(x, w: Constant, b: Constant, c: Constant):
    """(x @ w + b) * c == x @ (w * c) + b * c for MatMul, Gemm, Conv and ConvTranspose, for one
    number c or one for each channel, and for a division by c.
    """
    products = op.any_of("MatMul", "Gemm", "Conv", "ConvTranspose")
    product = products(x, w, optional(b))
    new_bias = _scales(_as_double(b), op.Reshape(_as_double(c), constant([-1])))
    after = products(x, _scaled_weight(w, c, product), op.Cast(new_bias, to=w.dtype))
    is_matmul = product.op_type == "MatMul"
    return _scales(product, c) >> after, where(
        _has_vector_bias(b),
        _is_scalable(product),
        (w.rank == 2) | ~is_matmul,
        (is_matmul & c.is_per_channel(product, product.rank - 1))
        | (~is_matmul & c.is_per_channel(product, 1)),
        (result.op_type == "Mul") | ~c.has_zeros,
        fits_in_freed_bytes(w.size + maximum(b.size, c.size).or_else(0), w, b.or_else(None), c),
    )


@rule(opset=7, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def convolution_shifted(x, w: Constant, b: Constant, c: Constant):
    """Conv(x, w, b) + c == Conv(x, w, b + c), for one number c or one for each channel, also for a
    subtraction and for ConvTranspose.
    """
    conv = op.any_of("Conv", "ConvTranspose")
    product = conv(x, w, optional(b))
    channel_shifts = op.Reshape(_as_double(c), constant([-1]))
    # -0.0 + c == c, also for c = -0.0
    old_bias = any_of(_as_double(b), constant(-0.0, DOUBLE))
    new_bias = _shifts(old_bias, op.Expand(channel_shifts, constant(product.shape[1:2])))
    return (
        _shifts(product, c) >> conv(x, w, op.Cast(new_bias, to=w.dtype)),
        where(
            product.is_single_use,
            c.is_per_channel(product, 1),
            fits_in_freed_bytes(product.shape[1], c, b.or_else(None)),
        ),
        # the convolution rounds the sum with its own bias before adding the constant
        inexact_if((c.dtype != FLOAT) | (~b.is_omitted & ~b.is_zeros)),
    )


@computed
def is_half_of_gelu(x: Matched) -> bool:
    """Return whether x is y * (1 + erf(...)) or y * (1 + tanh(...)).

    onnxruntime fuses this product with the factor of a Gelu.
    """
    return x.is_made_by("Mul") and any(map(_is_sum_with_erf, x.inputs))


def _is_sum_with_erf(value: Matched | None) -> bool:
    if value is None or not value.is_made_by("Add"):
        return False
    return any(term is not None and term.is_made_by("Erf", "Tanh") for term in value.inputs)


@rule(inexact=True, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def convolution_of_scaled(x, w: Constant, c: Constant, *bias):
    """Conv(x * c, w) == Conv(x, w * c), for one number c or one for each channel, also for a
    division and for ConvTranspose: a convolution is linear.
    """
    conv = op.any_of("Conv", "ConvTranspose")
    scaled = _scales(x, c)
    before = conv(scaled, w, *bias)
    channel_factors = op.Reshape(_as_double(c), constant((1, -1) + (1,) * (w.rank - 2)))
    new_weight = op.Cast(_scales(_as_double(w), channel_factors), to=w.dtype)
    return before >> conv(x, new_weight, *bias), where(
        c.has_one_element | ((before.op_type == "Conv") & (before.attribute("group") == 1)),
        c.is_per_channel(scaled, 1),
        c.broadcasts_to(x),
        scaled.is_single_use,
        fits_in_freed_bytes(w.size, w, c),
        ~is_half_of_gelu(x),
    )


@rule(opset=7, inexact=True, seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer")
def convolution_of_shifted(x, w: Constant, b: Constant, c: Constant):
    """Conv(x + c, w, b) == Conv(x, w, b + c * sum(w)) for one number c, without padding: c
    contributes the same sum to every window. The rule also applies to a subtraction.
    """
    conv = op("Conv")
    shifted = _shifts(x, c)
    before = conv(shifted, w, optional(b))
    shift = op.Reshape(_shifts(constant(0.0, DOUBLE), _as_double(c)), constant([1]))
    elements = w.sizes[1:].product
    windows = op.Reshape(_as_double(w), constant((w.sizes[0], elements)))
    sums = op.MatMul(windows, op.Expand(shift, constant((elements,))))
    new_bias = any_of(op.Add(_as_double(b), sums), sums)
    return before >> conv(x, w, op.Cast(new_bias, to=w.dtype)), where(
        before.is_unpadded,
        c.broadcasts_to(x),
        shifted.is_single_use,
        fits_in_freed_bytes(w.sizes[0], c, b.or_else(None)),
    )


@rule(each=[(False, "torch/heads"), (True, "models/swin")], opset=7, inexact=True)
def attention_scale(x, y, w: Constant, b: Constant, c: Constant, is_gemm, seen_in):
    """Transpose(Reshape(x @ w + b)) * c == Transpose(Reshape(x @ (w * c) + b * c)) for one number
    c: the scale of attention is merged into the weight of the projection.
    """
    matmul = op("MatMul")
    gemm = op("Gemm")
    reshape = op("Reshape")
    transpose = op("Transpose")
    product = gemm(x, w, b) if is_gemm else matmul(x, w)
    biased = product if is_gemm else op.Add(product, b)
    reshaped = reshape(biased, y)
    heads = transpose(reshaped)
    new_weight = _scaled_weight(w, c, product)
    new_bias = op.Cast(_scales(_as_double(b), op.Reshape(_as_double(c), constant([1]))), to=w.dtype)
    after = gemm(x, new_weight, new_bias) if is_gemm else op.Add(matmul(x, new_weight), new_bias)
    return _scales(heads, c) >> transpose(reshape(after, y)), where(
        *([] if is_gemm else [w.rank >= 2]),
        heads.same_shape(result),
        product.is_single_use,
        fits_in_freed_bytes(w.size + b.size, w, b, c),
    )
