"""Convolutions and matrix products whose weights take in what is next to them.

That is a scale, a shift, or a normalization. Scaling a weight rounds once more, or once less, than
scaling the result, so most rules here are for level 2. The new weights are computed in float64 and
rounded once. The bias is another matter: onnxruntime's CPU kernels of Conv and ConvTranspose, which
are for float32, add it to the finished sum of each element, as an Add after the convolution does. A
first bias is exact therefore.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite import (
    Matched,
    any_of,
    anything,
    attributes,
    constant,
    constants,
    op,
    optional,
    rule,
    values,
)

x, y, rest = values("x y *rest")
w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
e = attributes("e")

_DOUBLE = ir.DataType.DOUBLE
_ALLOWANCE = 512
"""Bytes by which a rewrite may grow the constants: about what the removed nodes take."""

_conv, _gemm, _matmul = op.any_of("Conv"), op.any_of("Gemm"), op.any_of("MatMul")
_any_conv = op.any_of("Conv", "ConvTranspose")
_any_biased = op.any_of("Gemm", "Conv", "ConvTranspose")
_any_product = op.any_of("MatMul", "Gemm", "Conv", "ConvTranspose")
_scales, _shifts = op.any_of("Mul", "Div"), op.any_of("Add", "Sub")


def wide(value: Any) -> Any:
    """In a replacement: a constant in float64; what is computed of it is rounded only once."""
    return op.Cast(value, to=int(_DOUBLE))


def narrow(value: Any) -> Any:
    """In a replacement: a constant in the dtype of the weight ``w``."""
    return op.Cast(value, to=lambda w: w.dtype)


def affordable(elements: int, *constants: Matched | None) -> bool:
    """Return whether new constants are not larger than those that nothing reads then.

    They are float32 or float64, too: scaling a float16 weight would be seen in the results. A
    weight without elements stays: a 0 in the shape of a Reshape has another meaning.

    Args:
        elements: The number of elements of the new constants.
        constants: Those that the matched nodes read, the first one of the dtype of the new ones;
            None for one that is omitted. One that others read, too, stays.
    """
    found = [each for each in constants if each is not None]
    dtype = found[0].dtype
    return (
        dtype in (ir.DataType.FLOAT, _DOUBLE)
        and found[0].size > 0
        and elements * dtype.itemsize <= _ALLOWANCE + sum(each.freed_bytes for each in found)
    )


def is_unpadded(conv: Matched) -> bool:
    """Return whether every element of the result sees a whole window of the input."""
    automatic, pads = conv.attribute("auto_pad"), conv.attribute("pads")
    return automatic in (None, "NOTSET", "VALID") and not any(pads or ())


# -------------------------------------------------------------------- behind a product

_vector = op.Reshape(wide(c), constant([-1]))
# along the axis of a weight that the channels of the product, or its columns, come from
_of_channels = constant(
    lambda w, product: [
        -1 if k == int(product.op_type != "Conv" and not product.attribute("transB")) else 1
        for k in range(w.rank)
    ]
)
_scaled_weight = narrow(_scales(wide(w), op.Reshape(_vector, _of_channels)))
_is_scalable = (
    # the bias, if there is one, has one number a channel or column, or one for all
    lambda b=None: b is None or b.rank < 2 or b.shape[0] == 1,
    lambda product: (
        product.is_single_use
        and (product.op_type != "ConvTranspose" or product.attribute("group") == 1)
    ),
)

_normal_factor = op.Div(
    wide(scale), op.Sqrt(op.Add(wide(variance), constant(lambda e: e, _DOUBLE)))
)
_normal_shift = op.Sub(wide(shift), op.Mul(wide(mean), _normal_factor))
_beta = constant(
    lambda product: product.attribute("beta") if product.op_type == "Gemm" else 1.0, _DOUBLE
)
_bias = op.Mul(wide(b), _beta)

conv_batch_normalization = rule(
    op.BatchNormalization(
        _any_biased(x, w, optional(b)).named("product"),
        scale,
        shift,
        mean,
        variance,
        epsilon=e,
        momentum=anything,
    )
    >> _any_biased(
        x,
        narrow(op.Mul(wide(w), op.Reshape(_normal_factor, _of_channels))),
        narrow(any_of(op.Add(_normal_shift, op.Mul(_bias, _normal_factor)), _normal_shift)),
        beta=None,
    ),
    where=[
        *_is_scalable,
        lambda w, scale, shift, mean, variance, result, b=None: (
            # before opset 14, further outputs ask for training
            result.has_one_output
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
    >> _any_product(x, _scaled_weight, narrow(_scales(wide(b), _vector))),
    where=[
        *_is_scalable,
        lambda w, c, product, scaled, b=None: (
            (w.rank == 2 or product.op_type != "MatMul")
            and c.is_per_channel(product, product.rank - 1 if product.op_type == "MatMul" else 1)
            and (scaled.op_type == "Mul" or c.array.all())
            and affordable(w.size + (0 if b is None else max(b.size, c.size)), w, b, c)
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
    >> _any_conv(
        x,
        w,
        narrow(
            _shifts(
                # adding to -0.0 keeps the sign of a zero
                any_of(wide(b), constant(-0.0, _DOUBLE)),
                op.Expand(_vector, constant(lambda product: product.shape[1:2])),
            )
        ),
    ),
    where=lambda c, product, b=None: (
        product.is_single_use
        and c.is_per_channel(product, 1)
        and affordable(product.sizes_of([1])[0], c, b)
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
                op.Reshape(wide(c), constant(lambda w: (1, -1, *(1 for _ in w.shape[2:])))),
            )
        ),
        *rest,
    ),
    where=lambda x, w, c, scaled, conv: (
        conv.attribute("group") == 1
        and not c.has_one_element
        and c.is_per_channel(scaled, 1)
        and x.same_shape(scaled)
        and scaled.is_single_use
        and affordable(w.size, w, c)
    ),
    opset=(7, None),
    inexact=True,
    doc="Conv(x * c, w) with one number a channel is Conv(x, w scaled by input channel).",
    seen_in="torch/preprocessing",
)


_shift = op.Reshape(_shifts(constant(0.0, _DOUBLE), wide(c)), constant([1]))
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
