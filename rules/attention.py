"""How attention that a model spells out is recognised: the patterns, and what must hold for them.

Heads and their sizes come from shapes, the scale from the product that holds it. Keys and values
are taken as they are, [batch, heads, length, size]: with a past before them, turned, or repeated.
"""

from __future__ import annotations

from typing import Any

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    any_of,
    attributes,
    constant,
    constants,
    filled,
    given,
    op,
    values,
)

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
