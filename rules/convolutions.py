"""Convolutions and matrix products whose weights take in what is next to them.

That is a scale, a shift, or a normalization. Scaling a weight rounds once more, or once less, than
scaling the result, so most rules here are for level 2. The new weights are computed in float64 and
rounded once. The bias is another matter: onnxruntime's CPU kernels of Conv and ConvTranspose, which
are for float32, add it to the finished sum of each element, as an Add after the convolution does. A
first bias is exact therefore.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnxfold.rules.weights import (
    DOUBLE,
    affordable,
    b,
    c,
    channels,
    narrow,
    normal_bias,
    normal_factor,
    normalized,
    per_channel,
    scaled_weight,
    spread,
    w,
    wide,
)

from onnxfold.rewrite import Matched, any_of, constant, op, optional, rule, values

x, y, rest = values("x y *rest")

_conv, _gemm, _matmul = op.any_of("Conv"), op.any_of("Gemm"), op.any_of("MatMul")
_any_conv = op.any_of("Conv", "ConvTranspose")
_any_biased, _any_product = (
    op.any_of("Gemm", "Conv", "ConvTranspose"),
    op.any_of("MatMul", "Gemm", "Conv", "ConvTranspose"),
)
_scales, _shifts = op.any_of("Mul", "Div"), op.any_of("Add", "Sub")
_factor = spread(wide(c), channels)
_scaled_weight = scaled_weight(_scales, _factor)
# the bias, if there is one, has one number a channel or column, or one for all
_is_row = (lambda b=None: b is None or b.rank < 2 or b.shape[0] == 1,)

# -------------------------------------------------------------------- behind a product

conv_batch_normalization = rule(
    normalized(_any_biased(x, w, optional(b)).named("product"))
    >> _any_biased(
        x,
        scaled_weight(op.Mul, normal_factor),
        normal_bias(
            op.Mul(
                wide(b),
                constant(
                    lambda product: product.attribute("beta") if product.op_type == "Gemm" else 1.0,
                    DOUBLE,
                ),
            )
        ),
        beta=None,
    ),
    where=[
        *_is_row,
        lambda w, scale, shift, mean, variance, product, result, b=None: (
            product.is_single_use
            # before opset 14, further outputs ask for training
            and result.has_one_output
            and affordable(w.size + scale.size, w, b, scale, shift, mean, variance)
        ),
    ],
    opset=(7, None),
    inexact=True,
    doc="BatchNormalization of a Conv, ConvTranspose or Gemm goes into its weight and bias.",
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)

product_scaled = rule(
    _scales(_any_product(x, w, optional(b)).named("product"), c).named("scaled")
    >> _any_product(x, _scaled_weight, narrow(_scales(wide(b), _factor))),
    where=[
        *_is_row,
        lambda w, c, product, scaled, b=None: (
            product.is_single_use
            and (w.rank == 2 or product.op_type != "MatMul")
            and per_channel(c, product, product.rank - 1 if product.op_type == "MatMul" else 1)
            and (scaled.op_type == "Mul" or c.array.all())
            and affordable(w.size + (b is not None) * channels(w, product)[0], w, b, c)
        ),
    ],
    opset=(7, None),
    inexact=True,
    benefit=1,
    doc="A product or convolution times (or divided by) a constant, one number or one a channel,"
    " has a scaled weight and bias instead.",
    seen_in="models/lora/torchscript",
)

convolution_shifted = rule(
    _shifts(_any_conv(x, w, optional(b)).named("product"), c)
    # adding to -0.0 keeps the sign of a zero
    >> _any_conv(x, w, narrow(_shifts(any_of(wide(b), constant(-0.0, DOUBLE)), _factor))),
    where=lambda w, c, product, b=None: (
        product.is_single_use
        and per_channel(c, product, 1)
        and affordable(*channels(w, product), c, b)
    ),
    # the convolution rounds the sum with its own bias before the constant is added
    inexact=lambda c, b=None: (
        c.dtype != ir.DataType.FLOAT or (b is not None and bool(b.array.any()))
    ),
    opset=(7, None),
    doc="A constant added to a convolution, one number or one a channel, goes into its bias.",
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)

# -------------------------------------------------------------------- before a convolution

_scaled = _scales(x, c).named("scaled")

convolution_of_scaled = rule(
    _any_conv(op.Mul(x, c).named("scaled"), w, *rest)
    >> _any_conv(x, narrow(op.Mul(wide(w), op.Reshape(wide(c), constant([1])))), *rest),
    where=[
        lambda x, w, c, scaled: (
            c.has_one_element
            and c.rank <= x.rank
            and scaled.is_single_use
            and affordable(w.size, w, c)
        ),
        # onnxruntime makes one kernel of a Gelu that is spelled out: x * (1 + erf(...)) / 2
        lambda x: (
            not x.is_made_by("Mul")
            or not any(
                operand.is_made_by("Add")
                and any(term.is_made_by("Erf", "Tanh") for term in operand.inputs)
                for operand in x.inputs
            )
        ),
    ],
    inexact=True,
    doc="Conv(x * c, w) is Conv(x, w * c) for one number c: a convolution is linear.",
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)

convolution_of_scaled_channels = rule(
    _conv(_scaled, w, *rest).named("conv")
    >> _conv(
        x,
        narrow(
            _scales(
                wide(w),
                op.Reshape(
                    spread(wide(c), lambda w: w.shape[1:2]),
                    constant(lambda w: (1, -1, *(1 for _ in w.shape[2:]))),
                ),
            )
        ),
        *rest,
    ),
    where=lambda x, w, c, scaled, conv: (
        conv.attribute("group") == 1
        and not c.has_one_element
        and per_channel(c, scaled, 1)
        and x.same_shape(scaled)
        and scaled.is_single_use
        and affordable(w.size, w, c)
    ),
    opset=(7, None),
    inexact=True,
    doc="Conv(x * c, w) with one number a channel is Conv(x, w scaled by input channel).",
    seen_in="torch/preprocessing",
)


def is_unpadded(conv: Matched) -> bool:
    """Return whether every element of the result sees a whole window of the input."""
    automatic, pads = conv.attribute("auto_pad"), conv.attribute("pads")
    return automatic in (None, "NOTSET", "VALID") and not any(pads or ())


_shift = op.Reshape(_shifts(constant(0.0, DOUBLE), wide(c)), constant([1]))
_windows = op.Reshape(wide(w), constant(lambda w: (w.sizes[0], math.prod(w.sizes[1:]))))
_window = op.Expand(_shift, constant(lambda w: (math.prod(w.sizes[1:]),)))
_moved = op.MatMul(_windows, _window)

convolution_of_shifted = rule(
    _conv(_shifts(x, c).named("shifted"), w, optional(b)).named("conv")
    >> _conv(x, w, narrow(any_of(op.Add(wide(b), _moved), _moved))),
    where=lambda x, w, c, shifted, conv, b=None: (
        is_unpadded(conv)
        and c.has_one_element
        and x.same_shape(shifted)
        and shifted.is_single_use
        and affordable(w.sizes[0], c, b)
    ),
    opset=(7, None),
    inexact=True,
    doc="Conv(x + c) without padding: c adds the same to every window, so it goes into the bias.",
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)

# -------------------------------------------------------------------- attention

_reshape, _transpose = op.any_of("Reshape"), op.any_of("Transpose")
_scaled_bias = narrow(_scales(wide(b), op.Reshape(wide(c), constant([1]))))


attention_scale = [
    rule(
        _scales(_transpose(_reshape(projection, y).named("reshaped")).named("heads"), c)
        >> _transpose(_reshape(scaled, y)),
        where=[
            lambda c, heads, result: c.has_one_element and heads.same_shape(result),
            lambda heads, reshaped, product, biased=None: all(
                value is None or value.is_single_use for value in (heads, reshaped, biased, product)
            ),
            lambda w, b, c: w.rank == 2 and b.rank == 1 and affordable(w.size + b.size, w, b, c),
        ],
        opset=(7, None),
        inexact=True,
        doc="The scale of attention, behind the split into heads, goes into the projection's"
        " weight.",
        seen_in=seen_in,
    )
    for projection, scaled, seen_in in (
        (
            op.Add(_matmul(x, w).named("product"), b).named("biased"),
            op.Add(_matmul(x, _scaled_weight), _scaled_bias),
            "torch/heads",
        ),
        (_gemm(x, w, b).named("product"), _gemm(x, _scaled_weight, _scaled_bias), "models/swin"),
    )
]

# -------------------------------------------------------------------- without a convolution

expected_value = rule(
    _conv(op.Softmax(op.Transpose(x, perm=(0, 2, 1, 3)), axis=1), w)
    >> op.Transpose(
        op.MatMul(op.Reshape(w, constant([1, -1])), op.Softmax(x, axis=2)), perm=(0, 2, 1, 3)
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
