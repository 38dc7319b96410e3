"""Matrix products whose weight takes in what stands next to them: scales, shifts, normalization.

Scaling a weight rounds otherwise than scaling the result, so all rules here are for level 2. The
new weights are computed in float64 and rounded once; float16 would be seen.
"""

from __future__ import annotations

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

from onnxfold.rewrite import constant, op, optional, rule, values

x, y = values("x y")

_gemm, _matmul, _any_product = op.any_of("Gemm"), op.any_of("MatMul"), op.any_of("MatMul", "Gemm")
_scales = op.any_of("Mul", "Div")
_factor = spread(wide(c), channels)
_scaled_weight = scaled_weight(_scales, _factor)
# the bias, if there is one, has one number a column or one for all
_is_row = (lambda b=None: b is None or b.rank < 2 or b.shape[0] == 1,)

# -------------------------------------------------------------------- scales

product_scaled = rule(
    _scales(_any_product(x, w, optional(b)).named("product"), c).named("scaled")
    >> _any_product(x, _scaled_weight, narrow(_scales(wide(b), _factor))),
    where=[
        *_is_row,
        lambda w, c, product, scaled, b=None: (
            w.rank == 2
            and per_channel(c, product, product.rank - 1)
            and (scaled.op_type == "Mul" or c.array.all())
            and product.is_single_use
            and affordable(w.size + (b is not None) * channels(w, product)[0], w, b, c)
        ),
    ],
    opset=(7, None),
    inexact=True,
    benefit=1,
    doc="The weight and the bias take the scale of the result, one number or one a column.",
    seen_in="models/lora/torchscript",
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
        doc="Attention's scale goes through the split into heads into the projection.",
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

# -------------------------------------------------------------------- batch normalization

gemm_batch_normalization = rule(
    normalized(_gemm(x, w, optional(b)).named("product"))
    >> _gemm(
        x,
        scaled_weight(op.Mul, normal_factor),
        normal_bias(op.Mul(wide(b), constant(lambda product: product.attribute("beta"), DOUBLE))),
        beta=None,
    ),
    where=[
        *_is_row,
        lambda w, scale, shift, mean, variance, product, result, b=None: (
            product.is_single_use
            and result.has_one_output
            and affordable(w.size + scale.size, w, b, scale, shift, mean, variance)
        ),
    ],
    opset=(7, None),
    inexact=True,
    doc="The weight and bias do what BatchNormalization does in inference.",
    seen_in="torch/classifier",
)
