"""Matrix products whose weight takes in what stands next to them: scales, shifts, normalization.

Scaling a weight rounds otherwise than scaling the result, so all rules here are for level 2. The
new weights are computed in float64 and rounded once; float16 would be seen.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxfold.rules.numbers import is_scale
from onnxfold.rules.weights import (
    PRECISE,
    affordable,
    along,
    if_given,
    narrow,
    per_channel,
    spread,
    wide,
)

from onnxfold.rewrite import (
    Matched,
    any_of,
    anything,
    attributes,
    constant,
    constants,
    dtype_of,
    given,
    has_one_output,
    is_scalar_like,
    op,
    optional,
    rank_of,
    result,
    rule,
    same_shape,
    single_use,
    values,
)

x, y = values("x y")
w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
beta, e = attributes("beta e")

_DOUBLE = ir.DataType.DOUBLE

_gemm, _matmul, _product = op("Gemm"), op("MatMul"), op.any_of("MatMul", "Gemm")
_scales = op.any_of("Mul", "Div")
_precise = dtype_of(x).is_in(*PRECISE)

# -------------------------------------------------------------------- scales


@given
def _columns_axis(product: Matched) -> int:
    """Where the columns are in the weight, with ``transB`` or without."""
    return 0 if product.op_type == "Gemm" and product.attribute("transB") else 1


@given
def _columns(w: Matched, product: Matched) -> int:
    return w.sizes[_columns_axis(product)]


@given
def _is_row(b: Matched | None = None) -> bool:
    """The bias, if there is one, has one number a column or one for all."""
    return b is None or b.rank < 2 or b.shape[0] == 1


def _scaled_weight(product: Any) -> Any:
    factors = along(spread(wide(c), _columns(w, product)), _columns_axis(product), 2)
    return narrow(_scales(wide(w), factors), w)


_weighted = _product(x, w, optional(b))
_bias = narrow(_scales(wide(b), spread(wide(c), _columns(w, _product))), w)

product_scaled = rule(
    _scales(_weighted, c) >> _product(x, _scaled_weight(_product), _bias),
    where=(rank_of(w) == 2)
    & per_channel(c, _weighted, rank_of(_weighted) - 1, rank_of(_weighted))
    & is_scale(_scales, c)
    & single_use(_weighted)
    & _is_row(b)
    & affordable(w, frees=(w, b, c), makes=(if_given(_columns(w, _product), b),)),
    opset=(7, None),
    inexact=True,
    benefit=1,
    doc="The weight and the bias take the scale of the result, one number or one a column.",
    seen_in="models/lora/torchscript",
)


# -------------------------------------------------------------------- attention

_reshape, _transpose = op("Reshape"), op("Transpose")
_scaled_bias = narrow(_scales(wide(b), op.Reshape(wide(c), constant([1]))), b)


def _attention_scale(product: Any, projection: Any, scaled: Any, seen_in: str) -> Any:
    reshaped = _reshape(projection, y)
    heads = _transpose(reshaped)
    return rule(
        _scales(heads, c) >> _transpose(_reshape(scaled, y)),
        where=(rank_of(w) == 2)
        & (rank_of(b) == 1)
        & is_scalar_like(c)
        & same_shape(heads, result)
        & single_use(heads)
        & single_use(reshaped)
        & single_use(projection)
        & affordable(w, frees=(w, b, c), makes=(_columns(w, product),)),
        opset=(7, None),
        inexact=True,
        doc="Attention's scale goes through the split into heads into the projection.",
        seen_in=seen_in,
    )


attention_scale = [
    _attention_scale(
        _matmul,
        op.Add(_matmul(x, w), b),
        op.Add(_matmul(x, _scaled_weight(_matmul)), _scaled_bias),
        seen_in="torch/heads",
    ),
    _attention_scale(
        _gemm,
        _gemm(x, w, b),
        _gemm(x, _scaled_weight(_gemm), _scaled_bias),
        seen_in="models/swin",
    ),
]

# -------------------------------------------------------------------- batch normalization


_any_gemm = _gemm(x, w, optional(b), beta=beta)
_normalized = op.BatchNormalization(
    _any_gemm, scale, shift, mean, variance, epsilon=e, momentum=anything
)
_factor = op.Div(wide(scale), op.Sqrt(op.Add(wide(variance), constant(e, _DOUBLE))))
_moved = op.Sub(wide(shift), op.Mul(wide(mean), _factor))
_old = op.Mul(op.Mul(wide(b), constant(beta, _DOUBLE)), _factor)

gemm_batch_normalization = rule(
    _normalized
    >> _gemm(
        x,
        narrow(op.Mul(wide(w), along(_factor, _columns_axis(_gemm), 2)), w),
        narrow(any_of(op.Add(_moved, _old), _moved), w),
        beta=None,
    ),
    where=_precise
    & (rank_of(w) == 2)
    & single_use(_any_gemm)
    & has_one_output(_normalized)
    & affordable(w, frees=(w, b, scale, shift, mean, variance), makes=(_columns(w, _gemm),))
    & _is_row(b),
    opset=(7, None),
    inexact=True,
    doc="The weight and bias do what BatchNormalization does in inference.",
    seen_in="torch/classifier",
)
