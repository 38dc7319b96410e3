"""Combine runtime constants with each other and with weights: merge adapters into weights.

``x @ w + s * (x @ a @ b) == x @ (w + s * (a @ b))``: if a and b are the same over many runs, the
sum is computed once. `onnxfold split` uses this set, and applies a merge only if the estimated cost
of each run decreases. Sums of floats are rounded differently, so the rules are for level 2.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rules.arithmetic import rounds

from onnxfold.rewrite import *

OPTIONAL = True


@rule(inexact=rounds, seen_in="models/lora/dynamo")
def product_of_products(x, a, b):
    """(x @ a) @ b == x @ (a @ b)."""
    product = op.MatMul(x, a)
    return op.MatMul(product, b) >> op.MatMul(x, op.MatMul(a, b)), where(
        ~x.is_fixed, a.is_runtime_constant, b.is_fixed, a.rank == 2
    )


@rule(inexact=rounds, seen_in="models/lora/dynamo")
def factor_of_product(x, a, c):
    """(x @ a) * c == x @ (a * c), and Conv(x, a) * c == Conv(x, a * c), for one number c."""
    multiply = op.any_of("MatMul", "Conv")
    product = multiply(x, a)
    return op.Mul(product, c) >> multiply(x, op.Mul(a, c)), where(
        ~x.is_fixed,
        a.is_runtime_constant,
        c.is_fixed,
        c.has_one_element,
        product.same_shape(result),
        a.rank >= 2,
    )


@rule(inexact=True, seen_in="torch/lora_half")
def product_in_another_type(x, a, s: Attribute, t: Attribute):
    """Cast(Cast(x, s) @ a, t) == x @ Cast(a, t), if x has the dtype t."""
    product = op.Cast(op.MatMul(op.Cast(x, to=s), a), to=t)
    return product >> op.MatMul(x, op.Cast(a, to=t)), where(
        ~x.is_fixed, a.is_runtime_constant, x.dtype == t, t != BFLOAT16, x.is_float, a.is_float
    )


@rule(inexact=rounds, seen_in="models/lora/dynamo")
def sum_of_products(x, a, w, bias, *conv_bias):
    """(x @ w + bias) + x @ a == x @ (w + a) + bias, also without the bias, and for Conv."""
    multiply = op.any_of("MatMul", "Conv")
    product = multiply(x, a)
    product_of_w = multiply(x, w, *conv_bias)
    merged = multiply(x, op.Add(w, a), *conv_bias)
    biased = any_of(op.Add(product_of_w, bias), product_of_w)
    after = any_of(op.Add(merged, bias), merged)
    return op.Add(biased, product) >> after, where(
        ~x.is_fixed,
        a.is_fixed,
        w.is_fixed,
        a.is_runtime_constant | w.is_runtime_constant,
        a.same_shape(w),
        product.is_single_use,
        product_of_w.is_single_use,
    )


@rule(opset=7, inexact=rounds, seen_in="torch/lora_matrices")
def gemm_without_bias(x, a):
    """Gemm(x, a, transB=1) == x @ Transpose(a)."""
    gemm = op.Gemm(x, a, alpha=1.0, transA=0, transB=1)
    return gemm >> op.MatMul(x, op.Transpose(a, perm=(1, 0))), where(
        ~x.is_fixed, a.is_runtime_constant
    )


_DEFAULTS: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "transA": 0}


@rule(opset=11, inexact=rounds, seen_in="torch/lora_matrices")
def gemm_and_product(x, a, w, *bias):
    """Gemm(x, w, bias, transB=1) + x @ a == Gemm(x, w + Transpose(a), bias, transB=1)."""
    gemms = op("Gemm")
    product = op.MatMul(x, a)
    gemm = gemms(x, w, *bias, transB=1, **_DEFAULTS)
    return op.Add(gemm, product) >> gemms(x, op.Add(w, op.Transpose(a, perm=(1, 0))), *bias), where(
        ~x.is_fixed, a.is_runtime_constant, w.is_fixed, a.rank == 2
    )


@rule(opset=11, inexact=rounds, seen_in="torch/lora_conv1d")
def flat_gemm_and_product(x, a, w, shape, result_shape, *bias):
    """Reshape(Gemm(Reshape(x), w, bias)) + x @ a == Reshape(Gemm(Reshape(x), w + a, bias))."""
    flatten = op("Reshape")
    back = op("Reshape")
    gemms = op("Gemm")
    flat = flatten(x, shape)
    product = op.MatMul(x, a)
    gemm = gemms(flat, w, *bias, transB=0, **_DEFAULTS)
    reshaped = back(gemm, result_shape)
    merged = gemms(flat, op.Add(w, a), *bias)
    return op.Add(reshaped, product) >> back(merged, result_shape), where(
        ~x.is_fixed,
        a.is_runtime_constant,
        w.is_fixed,
        a.same_shape(w),
        product.is_single_use,
        gemm.is_single_use,
        # for the Gemm, the Reshapes join all axes except the last
        reshaped.shape[:-1] == x.shape[:-1],
    )


@rule(inexact=rounds, seen_in="torch/lora_conv")
def conv_of_conv(x, a, b):
    """Conv(Conv(x, a), b) == Conv(x, b @ a) for a 1x1 convolution b, also for rank-0 adapters."""
    conv = op("Conv")
    product = conv(x, a, auto_pad="NOTSET", group=1)
    second = op("Conv")(product, b)
    rows = op.Flatten(b, axis=1)
    columns = op.Flatten(a, axis=1)
    joined = op.Reshape(op.MatMul(rows, columns), constant(b.shape[:1] + a.shape[1:]))
    return second >> conv(x, joined), where(
        ~x.is_fixed,
        a.is_runtime_constant,
        b.is_fixed,
        # the second convolution combines only the channels of a position
        b.shape[2:].product == 1,
        second.attribute("group") == 1,
        second.is_unpadded,
        second.attribute("strides", (1,)).product == 1,
    )
