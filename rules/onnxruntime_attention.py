"""Attention as one op of onnxruntime's own, whatever the model (target "onnxruntime").

Heads and their sizes come from shapes, the scale from the product that holds it. Keys and values
are taken as they are, [batch, heads, length, size]: with a past before them, turned, or repeated.
float32 only: for that onnxruntime's CPU provider has the kernel, which rounds its own way.

A Transpose behind the block must bring its heads back behind the length: the op does that itself,
and blocks of GPT-2, Llama and ViT take 0.85 to 0.9 of the time (release 1.32, one thread). Where
the heads go elsewhere (`nn.MultiheadAttention`, SAM), the op took 1 to 10 % longer than the two
products and the Softmax; where batch and heads are one axis, from 12 % less to 70 % more.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite import (
    Matched,
    any_of,
    attributes,
    constant,
    constants,
    filled,
    op,
    optional,
    outputs,
    rule,
    values,
)

q, k, kt, v, x, mask, keep, hide, rest = values("q k kt v x mask keep hide *rest")
low, factor, divisor, above = constants("low factor divisor above")
alpha, axis, cap = attributes("alpha axis cap")
past_k, past_v = values("past_k past_v")
sizes = constants("sizes")
axis_too = attributes("axis_too")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- from one product to the other

_product = any_of(
    op.MatMul(q, kt),
    _ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
    _ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
)
scores = any_of(op.Mul(_product, factor), op.Div(_product, divisor), _product)
_weights = op.Softmax(
    any_of(
        op.Where(keep, op.Add(scores, mask), low),
        op.Where(hide, low, op.Add(scores, mask)),
        op.Add(scores, mask),
        op.Where(keep, scores, low),
        op.Where(hide, low, scores),
        scores,
    ),
    axis=axis,
).named("weights")

added = any_of(
    op.Where(keep, mask, low),
    op.Where(hide, low, mask),
    mask,
    op.Where(keep, constant(0.0, like=q), low),
    op.Where(hide, low, constant(0.0, like=q)),
)
"""The mask, as something that is added to the scores."""

zero = filled(0).named("zero")
# a row that is all hidden gives zeros, or what is no number
_guarded = any_of(op.Where(op.IsNaN(_weights), zero, _weights), _weights)

# -------------------------------------------------------------------- what must hold


def is_attention(
    q: Matched, v: Matched, weights: Matched, k: Matched | None = None, kt: Matched | None = None
) -> bool:
    """Return whether operands have the same batch, heads and head size: only a mask is broadcast.

    Args:
        q: Queries: [batch, heads, length, size].
        v: Values.
        weights: What the values are multiplied by.
        k: Keys.
        kt: Keys whose last two axes are swapped.
    """
    keys = k or kt
    if keys is None or not keys.rank == q.rank == v.rank == 4 or weights.axes != (3,):
        return False
    batch, heads, length, size = q.shape
    return (
        all(isinstance(number, int) and number > 0 for number in (heads, size))
        and v.shape == (batch, heads, v.shape[2], size)
        and keys.shape == (v.shape if kt is None else (batch, heads, size, v.shape[2]))
        # its last axis is that of the values, or the product with them fails
        and weights.shape[:-1] == (batch, heads, length)
    )


def scale(
    alpha: float | None = None, factor: Matched | None = None, divisor: Matched | None = None
) -> float | None:
    """Return what the product of queries and keys is multiplied by."""
    found = 1.0 if alpha is None else alpha
    for each, power in ((factor, 1), (divisor, -1)):
        if each is not None:
            if each.rank > 4 or not each.number:
                return None
            found *= float(each.number) ** power
    return found


# -------------------------------------------------------------------- the op

_TURN = (0, 2, 1, 3)
_query = op.Reshape(
    op.Transpose(q, perm=_TURN), constant(lambda q: (0, 0, q.shape[1] * q.shape[3]))
)
_as_large = op.Concat(
    constant([1, 1]),
    op.Slice(op.Shape(_query), constant([1]), constant([2])),
    op.Slice(op.Shape(v), constant([2]), constant([3])),
    axis=0,
)
_attention = _ms.MultiHeadAttention(
    _query,
    any_of(k, op.Transpose(kt, perm=(0, 1, 3, 2))),
    v,
    None,
    None,
    op.Expand(added, _as_large),
    num_heads=lambda q: q.shape[1],
    scale=scale,
)

attention = rule(
    op.Transpose(op.MatMul(_guarded, v), perm=_TURN)
    >> op.Reshape(
        any_of(op.Where(op.IsNaN(_attention), zero, _attention), _attention),
        constant(lambda q: (0, 0, q.shape[1], q.shape[3])),
    ),
    where=[
        lambda q: q.dtype == ir.DataType.FLOAT,
        is_attention,
        # what is put in the place of a score is the same as what it gives added to the score
        lambda low=None: low is None or low.number <= -1e30,
        lambda zero=None: zero is None or zero.rank <= 1,
        scale,
    ],
    opset=(10, None),
    inexact=True,
    target="onnxruntime",
    doc="softmax(q @ k^T * scale + mask) @ v becomes MultiHeadAttention.",
    seen_in="models/swin",
)

# -------------------------------------------------------------------- keys and values as rows

_op = _ms.any_of("MultiHeadAttention")


# [batch, length, heads, size] as [batch, length, heads * size]
_k_flat = op.Reshape(k, constant(lambda k: (0, 0, k.shape[2] * k.shape[3])))
_v_flat = op.Reshape(v, constant(lambda v: (0, 0, v.shape[2] * v.shape[3])))

attention_of_rows = rule(
    _op(x, op.Transpose(k, perm=_TURN), op.Transpose(v, perm=_TURN), *rest)
    >> _op(x, _k_flat, _v_flat, *rest),
    inexact=True,
    target="onnxruntime",
    doc="MultiHeadAttention reads keys and values before their heads are transposed to the front.",
    seen_in="models/swin",
)

_scaled = op.Mul(x, factor).named("scaled")
_scale_taken = (any_of(op.Reshape(_scaled, sizes), _scaled), any_of(op.Reshape(x, sizes), x))

attention_of_scaled = [
    rule(
        _op(*before, scale=alpha) >> _op(*after, scale=lambda alpha, factor: alpha * factor.number),
        where=lambda x, alpha, factor, scaled: (
            factor.has_one_element
            and x.same_shape(scaled)
            and scaled.is_single_use
            and alpha * factor.number != 0
        ),
        inexact=True,
        target="onnxruntime",
        doc="A factor of the queries or keys goes into the scale of MultiHeadAttention.",
        seen_in="models/lora/dynamo",
    )
    for before, after in zip(*(((it, *rest), (q, it, *rest)) for it in _scale_taken), strict=True)
]

# -------------------------------------------------------------------- what came before

_keys = op.Concat(past_k, op.Transpose(k, perm=_TURN), axis=axis)
_values = op.Concat(past_v, op.Transpose(v, perm=_TURN), axis=axis_too)
_of_all = _op(x, _keys, _values, None, None, optional(mask))
_of_past = _op(x, _k_flat, _v_flat, None, None, mask, past_k, past_v)

attention_with_past = rule(
    outputs(_of_all, _keys, _values) >> outputs(_of_past[0], _of_past[1], _of_past[2]),
    where=lambda k, axis, axis_too, past_k, past_v: (
        {axis, axis_too} <= {2, -2} and k.rank == 4 and past_k.shape == past_v.shape
    ),
    inexact=True,
    target="onnxruntime",
    doc="Concat of past and new keys and values is done by MultiHeadAttention itself.",
    seen_in="torch/gpt2_past",
)
