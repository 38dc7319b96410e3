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

from typing import Any

import onnx_ir as ir
from onnxfold.rules.attention import (
    added,
    alpha,
    axis,
    factor,
    guarded,
    hides,
    is_attention,
    is_vector,
    k,
    key_shape,
    kt,
    mask,
    q,
    rest,
    scale,
    scores,
    softmax_of,
    v,
    x,
    zero,
)

from onnxfold.rewrite import (
    any_of,
    attributes,
    axes,
    constant,
    constants,
    dtype_of,
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

past_k, past_v = values("past_k past_v")
sizes = constants("sizes")
axis_too = attributes("axis_too")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- from one product to the other

_weights = softmax_of(scores)
_TURN = (0, 2, 1, 3)
_heads, _size = shape_of(q)[1], shape_of(q)[3]
_query = op.Reshape(op.Transpose(q, perm=_TURN), constant((0, 0, _heads * _size)))
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
    num_heads=_heads,
    scale=scale,
)

attention = rule(
    op.Transpose(op.MatMul(guarded(_weights), v), perm=_TURN)
    >> op.Reshape(
        any_of(op.Where(op.IsNaN(_attention), zero, _attention), _attention),
        constant((0, 0, _heads, _size)),
    ),
    where=(dtype_of(q) == ir.DataType.FLOAT)
    & (axes(_weights) == (3,))
    & is_attention(key_shape, _weights)
    & hides
    & is_vector(zero)
    & (scale != 0.0),
    opset=(10, None),
    inexact=True,
    target="onnxruntime",
    doc="Softmax of the product of queries and keys, and its product with the values.",
    seen_in="models/swin",
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
    seen_in="models/swin",
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
        seen_in="models/lora/dynamo",
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
    seen_in="torch/gpt2_past",
)
