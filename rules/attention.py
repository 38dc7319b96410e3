"""How attention that a model spells out is recognised: the patterns, and what must hold for them.

Heads and their sizes come from shapes, the scale from the product that holds it. Keys and values
are taken as they are, [batch, heads, length, size]: with a past before them, turned, or repeated.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import Matched, any_of, attributes, constant, constants, filled, op, values

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


def guarded(weights: Any) -> Any:
    """A row that is all hidden gives zeros, or what is no number."""
    return any_of(op.Where(op.IsNaN(weights), zero, weights), weights)


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
