"""Attention as ONNX's own op of opset 23 (set "attention"), and how it is recognised.

Heads and their sizes come from shapes, the scale from the product that holds it. Keys and values
are taken as they are, [batch, heads, length, size]: with a past before them, turned, or repeated.
float32 only, for which onnxruntime's kernel was compared with what it replaces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxfold.rules import repeated_heads
from onnxfold.rules.repeated_heads import all_keys, all_values, is_joined, is_repeated

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
    rule,
    same_shape,
    shape_of,
    single_use,
    values,
)

OPTIONAL = True

q, k, kt, v, x, mask, keep, hide, rest = values("q k kt v x mask keep hide *rest")
low, factor, divisor, above = constants("low factor divisor above")
alpha, axis, cap = attributes("alpha axis cap")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- from one product to the other

_product = any_of(
    op.MatMul(q, kt),
    _ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
    _ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
)
scores = any_of(op.Mul(_product, factor), op.Div(_product, divisor), _product)


def softmax_of(scores: Any) -> Any:
    """The weights of values, with whatever mask."""
    return op.Softmax(
        any_of(
            op.Where(keep, op.Add(scores, mask), low),
            op.Where(hide, low, op.Add(scores, mask)),
            op.Add(scores, mask),
            op.Where(keep, scores, low),
            op.Where(hide, low, scores),
            scores,
        ),
        axis=axis,
    )


added = any_of(
    op.Where(keep, mask, low),
    op.Where(hide, low, mask),
    mask,
    op.Where(keep, constant(0.0, like=q), low),
    op.Where(hide, low, constant(0.0, like=q)),
)
"""The mask, as something that is added to the scores."""

zero = filled(0)


def guarded(weights: Any) -> Any:
    """A row that is all hidden gives zeros, or what is no number."""
    return any_of(op.Where(op.IsNaN(weights), zero, weights), weights)


@given
def key_shape(k: Matched | None = None, kt: Matched | None = None) -> Shape | None:
    """The shape of the keys, which the pattern has either way round."""
    if k is not None:
        return k.shape
    return None if kt is None else (*kt.shape[:-2], kt.shape[-1], kt.shape[-2])


@given
def is_attention(key: Shape, weights: Matched, q: Matched, v: Matched) -> bool:
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
def hides(low: Matched | None = None) -> bool:
    """What is put in the place of a score is the same as what it gives added to the score."""
    return low is None or bool(low.number <= -1e30)


@given
def is_vector(zero: Matched | None = None) -> bool:
    """The zeros for hidden rows are one."""
    return zero is None or zero.rank <= 1


@given
def scale(
    alpha: float | None = None, factor: Matched | None = None, divisor: Matched | None = None
) -> float | None:
    """What the product of queries and keys is multiplied by."""
    found = 1.0 if alpha is None else alpha
    for each, power in ((factor, 1), (divisor, -1)):
        if each is not None:
            if each.rank > 4 or not each.number:
                return None
            found *= float(each.number) ** power
    return found


# -------------------------------------------------------------------- the op

_as_large = op.Concat(
    constant([1, 1]),
    op.Slice(op.Shape(q), constant([2]), constant([3])),
    op.Slice(op.Shape(v), constant([2]), constant([3])),
    axis=0,
)


# onnxruntime takes the lowest number for minus infinity: of a row that is all hidden by it, it
# makes zeros, and not the mean of all values
_hidden = op.Equal(added, constant(float(np.finfo(np.float32).min), like=q))
_mask = op.Where(_hidden, constant(-1e38, like=q), added)


def _attention(weights: Any, where: Any, scale: Any, **softcap: Any) -> Any:
    result = op.Attention(
        q,
        any_of(k, op.Transpose(kt, perm=(0, 1, 3, 2))),
        v,
        op.Expand(_mask, _as_large),
        scale=scale,
        **softcap,
    )
    return rule(
        op.MatMul(guarded(weights), v) >> any_of(op.Where(op.IsNaN(result), zero, result), result),
        where=(dtype_of(q) == ir.DataType.FLOAT)
        & (axes(weights) == (3,))
        & is_attention(key_shape, weights)
        & hides
        & is_vector(zero)
        & where,
        opset=(23, None),
        inexact=True,
        doc="Softmax of the product of queries and keys, and its product with the values.",
    )


_capped = softmax_of(op.Mul(op.Tanh(scores), above))

attention = [
    _attention(softmax_of(scores), scale > 0.0, scale),
    _attention(
        _capped,
        (scale > 0.0) & (number(above) > 0.0),
        scale * number(above),
        softcap=number(above),
    ),
]

# -------------------------------------------------------------------- its operands

_scaled = op.Mul(x, factor)

standard_attention_of_scaled = [
    rule(
        op.Attention(*before, scale=alpha, softcap=cap)
        >> op.Attention(*after, scale=alpha * number(factor), softcap=cap),
        where=is_scalar_like(factor)
        & same_shape(x, _scaled)
        & single_use(_scaled)
        & (alpha * number(factor) > 0.0),
        opset=(23, None),
        inexact=True,
        doc="What queries or keys are scaled by is a part of the scale of their products.",
    )
    for before, after in (((_scaled, *rest), (x, *rest)), ((q, _scaled, *rest), (q, x, *rest)))
]

_k, _v, _heads = repeated_heads.k, repeated_heads.v, shape_of(q)[1]

standard_attention_of_groups = rule(
    op.Attention(q, all_keys, all_values, *rest, scale=alpha, softcap=cap)
    >> op.Attention(q, _k, _v, *rest, scale=alpha, softcap=cap),
    where=is_repeated(repeated_heads.repeated_keys, _k, _heads)
    & is_repeated(repeated_heads.repeated_values, _v, _heads)
    & is_joined(all_keys, _k, _heads)
    & is_joined(all_values, _v, _heads),
    opset=(23, None),
    inexact=True,
    doc="Heads of keys and values are read by several queries, and not repeated for them.",
)
