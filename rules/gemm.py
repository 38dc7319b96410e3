"""Matrix products: a bias that is added to them, more dimensions, transposes.

A Gemm is one op for a product and a bias. On onnxruntime it has the bits of MatMul and Add if the
sum fits into one pass of its kernels (128 elements) and there is more than one row; otherwise the
bias is added earlier, and rounding differs. Bits also differ if an operand is read transposed.
Rules are for float32 and float64: one rounding less would be seen in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxfold.rules.shapes import target_shape
from onnxfold.rules.transposes import swaps_last_two
from onnxfold.rules.weights import PRECISE

from onnxfold.rewrite import (
    anything,
    attributes,
    broadcasts_to,
    computed,
    constant,
    constants,
    dtype_of,
    filled,
    is_constant,
    op,
    rank_of,
    result,
    rule,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match

x, y, z, rest = values("x y z *rest")
c = constants("c")
a, p = attributes("a p")

_gemm = op("Gemm")
_precise = dtype_of(x).is_in(*PRECISE)
_KERNEL_DEPTH = 128

# -------------------------------------------------------------------- when bits stay


def _rows_and_depth(match: Match, product: Any) -> tuple[bool, int] | None:
    """Whether there is more than one row (or none), and over how many elements sums go."""
    rows, shape = match.shape(product), match.shape(x)
    if rows is None or shape is None:
        return None
    transposed = match.attribute(product, "transA")
    depth = shape[0 if transposed else -1]
    if not isinstance(depth, int):
        return None
    return any(isinstance(size, int) and size != 1 for size in rows[:-1]), depth


def _rounds_otherwise(product: Any) -> Callable[[Match], bool]:
    """The sum with the bias may be rounded otherwise in a Gemm than in an Add after it."""

    def rounds_otherwise(match: Match) -> bool:
        found = _rows_and_depth(match, product)
        if found is None:
            return True
        several_rows, depth = found
        scaled = match.attribute(product, "alpha") not in (None, 1.0)
        return scaled or not several_rows or depth > _KERNEL_DEPTH

    return rounds_otherwise


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
)

_bare_gemm = _gemm(x, y)

gemm_add = rule(
    op.Add(_bare_gemm, z) >> _gemm(x, y, z, beta=1.0),
    where=_precise & broadcasts_to(z, _bare_gemm) & single_use(_bare_gemm),
    opset=(11, None),
    inexact=_rounds_otherwise(_bare_gemm),
    doc="A Gemm without a bias gets one.",
)

gemm_zero_bias = rule(
    _gemm(x, y, filled(0)) >> _gemm(x, y, beta=None),
    opset=(11, None),
    inexact=True,
    doc="A bias of zeros adds nothing, but makes 0.0 of -0.0; one row is summed in another order.",
)

gemm_beta_zero = rule(
    _gemm(x, y, z, beta=0.0) >> _gemm(x, y, beta=None),
    opset=(11, None),
    doc="A bias that counts for nothing.",
)


# -------------------------------------------------------------------- matrices in more dimensions


def _bias_of_columns(match: Match) -> bool:
    """The bias has one number a column, or one for all, and does not raise the rank."""
    shape, rank = match.shape(z), match.rank(_matmul)
    if shape is None or rank is None or len(shape) > rank:
        return False
    return all(size == 1 for size in shape[:-1])


def _flat(match: Match) -> tuple[int, int] | None:
    shape = match.shape(y)
    if shape is None or not isinstance(shape[0], int):
        return None
    return (-1, shape[0]) if shape[0] > 0 else None


def _from_flat(match: Match) -> tuple[int, ...] | None:
    """What the outer Reshape is told if it is given a matrix."""
    before, after = match.shape(_matmul), match.shape(result)
    if before is None or after is None:
        return None
    rows = match.facts.types.algebra.symbol()
    return target_shape((rows, before[-1]), after)


_biased = op.Add(_matmul, z)

matmul_add_between_reshapes = rule(
    op.Reshape(_biased, c, allowzero=anything)
    >> op.Reshape(
        op.Gemm(op.Reshape(x, constant(computed(_flat))), y, op.Reshape(z, constant([-1]))),
        constant(computed(_from_flat)),
    ),
    where=_precise
    & (rank_of(y) == 2)
    & (rank_of(x) > 2)
    & is_constant(z)
    & _bias_of_columns
    & (lambda m: _from_flat(m) is not None and _flat(m) is not None)
    & single_use(_matmul)
    & single_use(_biased),
    opset=(7, None),
    inexact=_rounds_otherwise(_matmul),
    doc="A product that is reshaped anyway can be one of matrices, and have its bias in it.",
)

# -------------------------------------------------------------------- transposes


# onnxruntime sums a product with one row in another order once a matrix is transposed
gemm_of_transposed = (
    rule(
        _gemm(op.Transpose(x, perm=p), y, *rest, transA=a) >> _gemm(x, y, *rest, transA=1 - a),
        where=~is_constant(x) & swaps_last_two(p) & a.is_in(0, 1),
        inexact=True,
        doc="Gemm transposes its first operand itself.",
    ),
    rule(
        _gemm(x, op.Transpose(y, perm=p), *rest, transB=a) >> _gemm(x, y, *rest, transB=1 - a),
        where=~is_constant(y) & swaps_last_two(p) & a.is_in(0, 1),
        inexact=True,
        doc="Gemm transposes its second operand itself.",
    ),
)


def _matrices(match: Match) -> bool:
    return match.rank(x) == 2 and match.rank(y) == 2


matmul_of_transposed = [
    rule(
        op.MatMul(left, right) >> op.Gemm(x, y, transA=a, transB=b_),
        where=_precise & _matrices & ~is_constant(moved),
        opset=(11, None),
        inexact=True,
        benefit=a + b_,
        doc="A product of matrices one of which is transposed.",
    )
    for left, right, a, b_, moved in (
        (op.Transpose(x, perm=(1, 0)), op.Transpose(y, perm=(1, 0)), 1, 1, result),
        (op.Transpose(x, perm=(1, 0)), y, 1, 0, x),
        (x, op.Transpose(y, perm=(1, 0)), 0, 1, y),
    )
]
