"""Matrix products: what is added to them, and scales and transposes next to them.

A Gemm is one op for a product and a bias. On onnxruntime it has the bits of MatMul and Add if the
sum fits into one pass of its kernels (128 elements) and there is more than one row; otherwise the
bias is added earlier, and rounding differs. Bits also differ if an operand is read transposed.
Rules are for float32 and float64: one rounding less would be seen in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxfold.rules.shapes import target_shape
from onnxfold.rules.transposes import swaps_last_two
from onnxfold.rules.weights import affordable, along, narrow, per_channel, spread, wide

from onnxfold.analysis.types import Shape, Symbol
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
    is_scalar_like,
    op,
    rank_of,
    result,
    rule,
    same_shape,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match

x, y, z, rest = values("x y z *rest")
w, b, c, s, scale, shift, mean, variance = constants("w b c s scale shift mean variance")
a, alpha, beta, e, p = attributes("a alpha beta e p")

_gemm = op("Gemm")
_precise = (dtype_of(x) == ir.DataType.FLOAT) | (dtype_of(x) == ir.DataType.DOUBLE)
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
    doc="A bias of zeros adds nothing.",
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
    rows: Shape = (Symbol("rows"), before[-1])
    return target_shape(rows, after)


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
        where=~is_constant(x) & swaps_last_two(p),
        inexact=True,
        doc="Gemm transposes its first operand itself.",
    ),
    rule(
        _gemm(x, op.Transpose(y, perm=p), *rest, transB=a) >> _gemm(x, y, *rest, transB=1 - a),
        where=~is_constant(y) & swaps_last_two(p),
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

# -------------------------------------------------------------------- scales


def _columns(match: Match) -> int | None:
    """How many columns the product has, from the weight, with ``transB`` or without."""
    shape = match.static_shape(w)
    return None if shape is None else shape[0 if _is_transposed(match) else -1]


def _is_transposed(match: Match) -> bool:
    return _gemm in match.bindings and bool(match.attribute(_gemm, "transB"))


def _weight_columns(match: Match) -> tuple[int, int] | None:
    return (0 if _is_transposed(match) else 1), 2


def _last_axis(product: Any) -> Callable[[Match], tuple[int, int] | None]:
    def last_axis(match: Match) -> tuple[int, int] | None:
        rank = match.rank(product)
        return None if not rank else (rank - 1, rank)

    return last_axis


def _scaled_weight(name: str) -> Any:
    factors = along(spread(wide(c), _columns), _weight_columns)
    return narrow(getattr(op, name)(wide(w), factors), w)


_weighted = op.MatMul(x, w)

matmul_scaled = [
    rule(
        getattr(op, name)(_weighted, c) >> op.MatMul(x, _scaled_weight(name)),
        where=_precise
        & (rank_of(w) == 2)
        & per_channel(c, _weighted, _last_axis(_weighted))
        & single_use(_weighted)
        & affordable(w, frees=(w, c)),
        opset=(8, None),
        inexact=True,
        benefit=1,
        doc="The weight takes the scale of the product, one number or one a column.",
    )
    for name in ("Mul", "Div")
]


def _gemm_bias(match: Match) -> bool:
    """The Gemm's bias is one a column or one for all."""
    shape = match.static_shape(b)
    return shape is not None and (len(shape) < 2 or shape[0] == 1)


def _gemm_scaled(name: str, *bias: Any) -> Any:
    product = _gemm(x, w, *bias)
    biases = [narrow(getattr(op, name)(wide(each), _bias_factor), w) for each in bias]
    return rule(
        getattr(op, name)(product, c) >> _gemm(x, _scaled_weight(name), *biases),
        where=per_channel(c, product, _last_axis(product))
        & single_use(product)
        & affordable(w, frees=(w, *bias, c), makes=(_columns,) if bias else ())
        & (_gemm_bias if bias else _precise),
        opset=(8, None),
        inexact=True,
        benefit=1,
        doc="The weight and the bias take the scale of the Gemm's result.",
    )


_bias_factor = spread(wide(c), _columns)

gemm_scaled = [_gemm_scaled(name, *bias) for name in ("Mul", "Div") for bias in ((), (b,))]

_scaled_input = op.Mul(x, c)


def _not_above(match: Match) -> bool:
    rank = match.rank(x)
    return rank is not None and (match.rank(c) or 0) <= rank


product_of_scaled = [
    rule(
        product(_scaled_input, w, *rest)
        >> product(x, narrow(op.Mul(wide(w), op.Reshape(wide(c), constant([1]))), w), *rest),
        where=_precise
        & is_scalar_like(c)
        & _not_above
        & single_use(_scaled_input)
        & affordable(w, frees=(w, c)),
        inexact=True,
        doc="The weight takes the scale of the input.",
    )
    for product in (op("MatMul"), _gemm)
]

_constant_bias = _gemm(x, y, b)


def _unscaled(match: Match) -> bool:
    return bool(match.attribute(_gemm, "beta") == 1.0)


gemm_shifted = [
    rule(
        getattr(op, name)(_constant_bias, c)
        >> _gemm(x, y, narrow(getattr(op, name)(wide(b), wide(c)), b)),
        where=broadcasts_to(c, b)
        & broadcasts_to(c, _constant_bias)
        & single_use(_constant_bias)
        & affordable(b, frees=(b, c))
        & _unscaled,
        opset=(7, None),
        inexact=True,
        doc="The bias takes what is added to the Gemm.",
    )
    for name in ("Add", "Sub")
]

# -------------------------------------------------------------------- attention

_reshape, _transpose = op("Reshape"), op("Transpose")
_scaled_heads = (
    (
        op.Add(_weighted, b),
        lambda name: op.Add(op.MatMul(x, _scaled_weight(name)), _scaled_b(name)),
    ),
    (_gemm(x, w, b), lambda name: _gemm(x, _scaled_weight(name), _scaled_b(name))),
)


def _scaled_b(name: str) -> Any:
    return narrow(getattr(op, name)(wide(b), op.Reshape(wide(c), constant([1]))), b)


def _attention_scale(name: str, projection: Any, scaled: Callable[[str], Any]) -> Any:
    reshaped = _reshape(projection, y)
    heads = _transpose(reshaped)
    return rule(
        getattr(op, name)(heads, c) >> _transpose(_reshape(scaled(name), y)),
        where=_precise
        & (rank_of(w) == 2)
        & (rank_of(b) == 1)
        & is_scalar_like(c)
        & same_shape(heads, result)
        & single_use(heads)
        & single_use(reshaped)
        & single_use(projection)
        & affordable(w, frees=(w, b, c), makes=(_columns,)),
        opset=(8, None),
        inexact=True,
        doc="Attention's scale goes through the split into heads into the projection.",
    )


attention_scale = [
    _attention_scale(name, *each) for name in ("Mul", "Div") for each in _scaled_heads
]

# -------------------------------------------------------------------- batch normalization


def _batch_normalization(product: Any, *bias: Any) -> Any:
    pattern = op.BatchNormalization(
        product, scale, shift, mean, variance, epsilon=e, momentum=anything
    )
    epsilon = constant(e, ir.DataType.DOUBLE)
    factor = op.Div(wide(scale), op.Sqrt(op.Add(wide(variance), epsilon)))
    weight = narrow(op.Mul(wide(w), along(factor, _weight_columns)), w)
    moved = op.Sub(wide(shift), op.Mul(wide(mean), factor))
    if bias:
        given = op.Mul(wide(bias[0]), constant(beta, ir.DataType.DOUBLE))
        moved = op.Add(moved, op.Mul(given, factor))
    if product.variable is None:
        scaled = op.Gemm(x, weight, narrow(moved, w))
    else:
        scaled = _gemm(x, weight, narrow(moved, w), beta=1.0)
    return rule(
        pattern >> scaled,
        where=_precise
        & (rank_of(product) == 2)
        & (rank_of(w) == 2)
        & single_use(product)
        & (lambda m: sum(bool(v.name) for v in m.node(pattern).outputs) == 1)
        & affordable(w, frees=(w, *bias, scale, shift, mean, variance), makes=(_columns,))
        & (_gemm_bias if bias else _precise),
        opset=(7, None),
        inexact=True,
        doc="The weight and bias do what BatchNormalization does in inference.",
    )


gemm_batch_normalization = [
    _batch_normalization(_gemm(x, w)),
    _batch_normalization(_gemm(x, w, b, beta=beta), b),
    _batch_normalization(op.MatMul(x, w)),
]
