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
    any_of,
    attributes,
    constant,
    constants,
    filled,
    op,
    rule,
    values,
)

q, k, kt, v, x, y, mask, keep, hide = values("q k kt v x y mask keep hide")
sizes, more_sizes, bias, apart = values("sizes more_sizes bias apart")
low, factor, divisor = constants("low factor divisor")
alpha, axis = attributes("alpha axis")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- from one product to the other

_product = any_of(
    op.MatMul(q, kt),
    _ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
    _ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
)
_scores = any_of(op.Mul(_product, factor), op.Div(_product, divisor), _product)
_weights = op.Softmax(
    any_of(
        op.Where(keep, op.Add(_scores, mask), low),
        op.Where(hide, low, op.Add(_scores, mask)),
        op.Add(_scores, mask),
        op.Where(keep, _scores, low),
        op.Where(hide, low, _scores),
        _scores,
    ),
    axis=axis,
).named("weights")

# the mask, as something that is added to the scores
_added = any_of(
    op.Where(keep, mask, low),
    op.Where(hide, low, mask),
    mask,
    op.Where(keep, constant(0.0, like=q), low),
    op.Where(hide, low, constant(0.0, like=q)),
)

_zero = filled(0).named("zero")
# a row that is all hidden gives zeros, or what is no number
_guarded = any_of(op.Where(op.IsNaN(_weights), _zero, _weights), _weights)

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
    op.Expand(_added, _as_large),
    num_heads=lambda q: q.shape[1],
    scale=lambda alpha=1.0, factor=None, divisor=None: (
        alpha * (factor.number if factor else 1) / (divisor.number if divisor else 1)
    ),
)

attention = rule(
    op.Transpose(op.MatMul(_guarded, v), perm=_TURN)
    >> op.Reshape(
        any_of(op.Where(op.IsNaN(_attention), _zero, _attention), _attention),
        constant(lambda q: (0, 0, q.shape[1], q.shape[3])),
    ),
    where=[
        lambda q: q.dtype == ir.DataType.FLOAT,
        # operands have the same batch, heads and head size: only a mask is broadcast
        lambda q, v, weights: (
            q.rank == v.rank == 4
            and weights.axes == (3,)
            and min(q.sizes_of((1, 3))) > 0
            and v.shape == (*q.shape[:2], v.shape[2], q.shape[3])
            # its last axis is that of the values, or the product with them fails
            and weights.shape[:-1] == q.shape[:-1]
        ),
        lambda q, v, k=None, kt=None: (
            k.shape == v.shape if kt is None else kt.shape == (*q.shape[:2], q.shape[3], v.shape[2])
        ),
        # what is put in the place of a score is the same as what it gives added to the score
        lambda low=None: low is None or low.number <= -1e30,
        lambda zero=None: zero is None or zero.rank <= 1,
        lambda factor=None, divisor=None: all(
            each is None or (each.rank <= 4 and each.number != 0) for each in (factor, divisor)
        ),
    ],
    opset=(10, None),
    inexact=True,
    target="onnxruntime",
    doc="softmax(q @ k^T * scale + mask) @ v becomes MultiHeadAttention.",
    seen_in="models/swin",
)

# -------------------------------------------------------------------- batch and heads on one axis

# Exporters of models that multiply matrices in batches of one axis reshape to it and back. The rule
# above looks for the heads on an axis of their own.
# with whatever attributes
_join, _join_too, _part = (op.any_of("Reshape") for _ in range(3))
_left, _right = _join(x, sizes).named("left"), _join_too(y, more_sizes).named("right")

product_of_heads = [
    rule(
        _part(any_of(op.Add(joined, bias).named("biased"), joined), apart)
        >> any_of(op.Add(multiply(x, y), _part(bias, apart)), multiply(x, y)),
        where=[
            # the operands are [batch, heads, rows, columns], read as [batch * heads, rows, columns]
            lambda x, y, left, right: (
                x.rank == y.rank == 4
                and left.rank == right.rank == 3
                and (x.shape[:2], left.shape[1:], right.shape[1:])
                == (y.shape[:2], x.shape[2:], y.shape[2:])
            ),
            # the result is their product with batch and heads apart
            lambda x, y, product, result: (
                result.shape == (*x.shape[:3], y.shape[-2 if product.attribute("transB") else -1])
                and product.is_single_use
                and not any(map(product.attribute, ("transA", "transBatchA", "transBatchB")))
            ),
            lambda product, bias=None, biased=None: (
                bias is None or (product.same_shape(bias) and biased.is_single_use)
            ),
        ],
        inexact=True,
        target="onnxruntime",
        doc="MatMul between Reshapes that join batch and heads to one axis and back is done without"
        " them.",
        seen_in="torch/deberta_v2",
    )
    for multiply in (op.any_of("MatMul"), op.domain("com.microsoft").any_of("FusedMatMul"))
    for joined in (multiply(_left, _right).named("product"),)
]
