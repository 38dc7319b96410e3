"""Matrix products whose weight takes in what stands next to them: scales, shifts, normalization.

Scaling a weight rounds otherwise than scaling the result, so all rules here are for level 2. The
new weights are computed in float64 and rounded once; float16 would be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxfold.rules.numbers import is_scale
from onnxfold.rules.weights import PRECISE, affordable, along, narrow, per_channel, spread, wide

from onnxfold.rewrite import (
    anything,
    attributes,
    broadcasts_to,
    constant,
    constants,
    dtype_of,
    is_scalar_like,
    op,
    rank_of,
    result,
    rule,
    same_shape,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match

x, y, rest = values("x y *rest")
w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
beta, e = attributes("beta e")

_gemm = op("Gemm")
_precise = dtype_of(x).is_in(*PRECISE)

# -------------------------------------------------------------------- scales


def _columns(match: Match) -> int | None:
    """How many columns the product has, from the weight, with ``transB`` or without."""
    shape = match.static_shape(w)
    return None if shape is None else shape[0 if _is_transposed(match) else -1]


def _is_transposed(match: Match) -> bool:
    return _gemm in match.bindings and bool(match.attribute(_gemm, "transB"))


def _weight_columns(match: Match) -> tuple[int, int] | None:
    return (0 if _is_transposed(match) else 1), 2


def _last_axis(product: Any) -> Callable[[Match], tuple[int, int] | None]:
    def last_axis(match: Match) -> tuple[int, int] | None:
        rank = match.rank(product)
        return None if not rank else (rank - 1, rank)

    return last_axis


def _scaled_weight(name: str) -> Any:
    factors = along(spread(wide(c), _columns), _weight_columns)
    return narrow(getattr(op, name)(wide(w), factors), w)


_weighted = op.MatMul(x, w)

matmul_scaled = [
    rule(
        getattr(op, name)(_weighted, c) >> op.MatMul(x, _scaled_weight(name)),
        where=_precise
        & (rank_of(w) == 2)
        & per_channel(c, _weighted, _last_axis(_weighted))
        & is_scale(name, c)
        & single_use(_weighted)
        & affordable(w, frees=(w, c)),
        opset=(8, None),
        inexact=True,
        benefit=1,
        doc="The weight takes the scale of the product, one number or one a column.",
    )
    for name in ("Mul", "Div")
]


def _gemm_bias(match: Match) -> bool:
    """The Gemm's bias is one a column or one for all."""
    shape = match.static_shape(b)
    return shape is not None and (len(shape) < 2 or shape[0] == 1)


def _gemm_scaled(name: str, *bias: Any) -> Any:
    product = _gemm(x, w, *bias)
    biases = [narrow(getattr(op, name)(wide(each), _bias_factor), w) for each in bias]
    return rule(
        getattr(op, name)(product, c) >> _gemm(x, _scaled_weight(name), *biases),
        where=per_channel(c, product, _last_axis(product))
        & is_scale(name, c)
        & single_use(product)
        & affordable(w, frees=(w, *bias, c), makes=(_columns,) if bias else ())
        & (_gemm_bias if bias else _precise),
        opset=(8, None),
        inexact=True,
        benefit=1,
        doc="The weight and the bias take the scale of the Gemm's result.",
    )


_bias_factor = spread(wide(c), _columns)

gemm_scaled = [_gemm_scaled(name, *bias) for name in ("Mul", "Div") for bias in ((), (b,))]

_scaled_input = op.Mul(x, c)


def _not_above(match: Match) -> bool:
    rank = match.rank(x)
    return rank is not None and (match.rank(c) or 0) <= rank


product_of_scaled = [
    rule(
        product(_scaled_input, w, *rest)
        >> product(x, narrow(op.Mul(wide(w), op.Reshape(wide(c), constant([1]))), w), *rest),
        where=_precise
        & is_scalar_like(c)
        & _not_above
        & single_use(_scaled_input)
        & affordable(w, frees=(w, c)),
        inexact=True,
        doc="The weight takes the scale of the input.",
    )
    for product in (op("MatMul"), _gemm)
]

_constant_bias = _gemm(x, y, b)


def _unscaled(match: Match) -> bool:
    return bool(match.attribute(_gemm, "beta") == 1.0)


gemm_shifted = [
    rule(
        getattr(op, name)(_constant_bias, c)
        >> _gemm(x, y, narrow(getattr(op, name)(wide(b), wide(c)), b)),
        where=broadcasts_to(c, b)
        & broadcasts_to(c, _constant_bias)
        & single_use(_constant_bias)
        & affordable(b, frees=(b, c))
        & _unscaled,
        opset=(7, None),
        inexact=True,
        doc="The bias takes what is added to the Gemm.",
    )
    for name in ("Add", "Sub")
]

# -------------------------------------------------------------------- attention

_reshape, _transpose = op("Reshape"), op("Transpose")
_scaled_heads = (
    (
        op.Add(_weighted, b),
        lambda name: op.Add(op.MatMul(x, _scaled_weight(name)), _scaled_b(name)),
    ),
    (_gemm(x, w, b), lambda name: _gemm(x, _scaled_weight(name), _scaled_b(name))),
)


def _scaled_b(name: str) -> Any:
    return narrow(getattr(op, name)(wide(b), op.Reshape(wide(c), constant([1]))), b)


def _attention_scale(name: str, projection: Any, scaled: Callable[[str], Any]) -> Any:
    reshaped = _reshape(projection, y)
    heads = _transpose(reshaped)
    return rule(
        getattr(op, name)(heads, c) >> _transpose(_reshape(scaled(name), y)),
        where=_precise
        & (rank_of(w) == 2)
        & (rank_of(b) == 1)
        & is_scalar_like(c)
        & same_shape(heads, result)
        & single_use(heads)
        & single_use(reshaped)
        & single_use(projection)
        & affordable(w, frees=(w, b, c), makes=(_columns,)),
        opset=(8, None),
        inexact=True,
        doc="Attention's scale goes through the split into heads into the projection.",
    )


attention_scale = [
    _attention_scale(name, *each) for name in ("Mul", "Div") for each in _scaled_heads
]

# -------------------------------------------------------------------- batch normalization


def _batch_normalization(product: Any, *bias: Any) -> Any:
    pattern = op.BatchNormalization(
        product, scale, shift, mean, variance, epsilon=e, momentum=anything
    )
    epsilon = constant(e, ir.DataType.DOUBLE)
    factor = op.Div(wide(scale), op.Sqrt(op.Add(wide(variance), epsilon)))
    weight = narrow(op.Mul(wide(w), along(factor, _weight_columns)), w)
    moved = op.Sub(wide(shift), op.Mul(wide(mean), factor))
    if bias:
        given = op.Mul(wide(bias[0]), constant(beta, ir.DataType.DOUBLE))
        moved = op.Add(moved, op.Mul(given, factor))
    if product.variable is None:
        scaled = op.Gemm(x, weight, narrow(moved, w))
    else:
        scaled = _gemm(x, weight, narrow(moved, w), beta=1.0)
    return rule(
        pattern >> scaled,
        where=_precise
        & (rank_of(product) == 2)
        & (rank_of(w) == 2)
        & single_use(product)
        & (lambda m: sum(bool(v.name) for v in m.node(pattern).outputs) == 1)
        & affordable(w, frees=(w, *bias, scale, shift, mean, variance), makes=(_columns,))
        & (_gemm_bias if bias else _precise),
        opset=(7, None),
        inexact=True,
        doc="The weight and bias do what BatchNormalization does in inference.",
    )


gemm_batch_normalization = [
    _batch_normalization(_gemm(x, w)),
    _batch_normalization(_gemm(x, w, b, beta=beta), b),
    _batch_normalization(op.MatMul(x, w)),
]
