"""Attention as one op of onnxruntime's own, whatever the model (target "onnxruntime").

Heads and their sizes come from shapes, the scale from the product that holds it. Keys and values
are taken as they are, [batch, heads, length, size]: with a past before them, turned, or repeated.
float32 only: for that onnxruntime's CPU provider has the kernel, which rounds its own way.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    any_of,
    attributes,
    axes,
    constant,
    constants,
    dtype_of,
    filled,
    given,
    is_scalar_like,
    number,
    op,
    optional,
    outputs,
    rank_of,
    rule,
    same_shape,
    shape_of,
    single_use,
    values,
)

q, k, kt, v, x, mask, keep, hide, rest = values("q k kt v x mask keep hide *rest")
past_k, past_v = values("past_k past_v")
low, factor, sizes = constants("low factor sizes")
alpha, axis, axis_too = attributes("alpha axis axis_too")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- from one product to the other

_scores = any_of(
    op.MatMul(q, kt),
    _ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
    _ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
)
_masked = any_of(
    op.Where(keep, op.Add(_scores, mask), low),
    op.Where(hide, low, op.Add(_scores, mask)),
    op.Add(_scores, mask),
    op.Where(keep, _scores, low),
    op.Where(hide, low, _scores),
    _scores,
)
_weights = op.Softmax(_masked, axis=axis)
_zero = filled(0)
_guarded = any_of(op.Where(op.IsNaN(_weights), _zero, _weights), _weights)


@given
def _key_shape(k: Matched | None = None, kt: Matched | None = None) -> Shape | None:
    """The shape of the keys, which the pattern has either way round."""
    if k is not None:
        return k.shape
    return None if kt is None else (*kt.shape[:-2], kt.shape[-1], kt.shape[-2])


@given
def _is_attention(key: Shape, weights: Matched, q: Matched, v: Matched) -> bool:
    """Operands with the same batch, heads and head size: only a mask is broadcast."""
    if not len(key) == q.rank == v.rank == 4:
        return False
    batch, heads, length, size = q.shape
    return (
        all(isinstance(number, int) and number > 0 for number in (heads, size))
        and key == v.shape == (batch, heads, v.shape[2], size)
        # its last axis is that of the values, or the product with them fails
        and weights.shape[:-1] == (batch, heads, length)
    )


@given
def _hides(low: Matched | None = None) -> bool:
    """What is put in the place of a score is the same as what it gives added to the score."""
    return low is None or bool(low.number <= -1e30)


@given
def _is_vector(zero: Matched | None = None) -> bool:
    return zero is None or zero.rank <= 1


@given
def _scale(alpha: float | None = None) -> float:
    return 1.0 if alpha is None else alpha


_TURN = (0, 2, 1, 3)
_heads, _size = shape_of(q)[1], shape_of(q)[3]
_query = op.Reshape(op.Transpose(q, perm=_TURN), constant((0, 0, _heads * _size)))
_as_large = op.Concat(
    constant([1, 1]),
    op.Slice(op.Shape(_query), constant([1]), constant([2])),
    op.Slice(op.Shape(v), constant([2]), constant([3])),
    axis=0,
)
_added = any_of(
    op.Where(keep, mask, low),
    op.Where(hide, low, mask),
    mask,
    op.Where(keep, constant(0.0, like=q), low),
    op.Where(hide, low, constant(0.0, like=q)),
)
_attention = _ms.MultiHeadAttention(
    _query,
    any_of(k, op.Transpose(kt, perm=(0, 1, 3, 2))),
    v,
    None,
    None,
    op.Expand(_added, _as_large),
    num_heads=_heads,
    scale=_scale,
)

attention = rule(
    op.Transpose(op.MatMul(_guarded, v), perm=_TURN)
    >> op.Reshape(
        any_of(op.Where(op.IsNaN(_attention), _zero, _attention), _attention),
        constant((0, 0, _heads, _size)),
    ),
    where=(dtype_of(q) == ir.DataType.FLOAT)
    & (axes(_weights) == (3,))
    & _is_attention(_key_shape, _weights)
    & _hides
    & _is_vector(_zero)
    & (_scale != 0.0),
    opset=(10, None),
    inexact=True,
    target="onnxruntime",
    doc="Softmax of the product of queries and keys, and its product with the values.",
)

# -------------------------------------------------------------------- keys and values as rows

_op = _ms.any_of("MultiHeadAttention")


def _flat(value: Any) -> Any:
    """[batch, length, heads, size] as [batch, length, heads * size]."""
    return op.Reshape(value, constant((0, 0, shape_of(value)[2] * shape_of(value)[3])))


attention_of_rows = rule(
    _op(x, op.Transpose(k, perm=_TURN), op.Transpose(v, perm=_TURN), *rest)
    >> _op(x, _flat(k), _flat(v), *rest),
    inexact=True,
    target="onnxruntime",
    doc="The heads of keys and values need not be brought to the front.",
)

_scaled = op.Mul(x, factor)

_scale_taken = (any_of(op.Reshape(_scaled, sizes), _scaled), any_of(op.Reshape(x, sizes), x))

attention_of_scaled = [
    rule(
        _op(*before, scale=alpha) >> _op(*after, scale=alpha * number(factor)),
        where=is_scalar_like(factor)
        & same_shape(x, _scaled)
        & single_use(_scaled)
        & (alpha * number(factor) != 0.0),
        inexact=True,
        target="onnxruntime",
        doc="What queries or keys are scaled by is a part of the scale of their products.",
    )
    for before, after in zip(*(((it, *rest), (q, it, *rest)) for it in _scale_taken), strict=True)
]

# -------------------------------------------------------------------- what came before

_keys = op.Concat(past_k, op.Transpose(k, perm=_TURN), axis=axis)
_values = op.Concat(past_v, op.Transpose(v, perm=_TURN), axis=axis_too)
_of_all = _op(x, _keys, _values, None, None, optional(mask))
_of_past = _op(x, _flat(k), _flat(v), None, None, mask, past_k, past_v)

attention_with_past = rule(
    outputs(_of_all, _keys, _values) >> outputs(_of_past[0], _of_past[1], _of_past[2]),
    where=axis.is_in(2, -2)
    & axis_too.is_in(2, -2)
    & (rank_of(k) == 4)
    & (shape_of(past_k) == shape_of(past_v)),
    inexact=True,
    target="onnxruntime",
    doc="The op puts keys and values of the past before the new ones itself.",
)
