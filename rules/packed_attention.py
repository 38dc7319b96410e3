"""The products of self-attention as one (target "onnxruntime"): their weights become one constant.

onnxruntime's own Attention makes queries, keys and values itself. On the CPU provider (1.32) it
takes 3 to 8 % less time than three products and MultiHeadAttention at sizes of BERT and ViT up to
200 tokens, and as long at 512. One product whose result is split takes longer than three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rewrite import (
    Matched,
    attributes,
    constants,
    given,
    op,
    optional,
    rank_of,
    rule,
    values,
)

x, mask, flat, sizes, more_sizes, other_sizes = values("x mask flat sizes more_sizes other_sizes")
wq, wk, wv, bq, bk, bv = constants("wq wk wv bq bk bv")
heads, scale = attributes("heads scale")

_ms = op.domain("com.microsoft")


def _of_all(weight: Any, bias: Any, _: Any) -> tuple[Any, Any]:
    """A projection, and the product that it is made of."""
    product = op.MatMul(x, weight)
    return op.Add(product, bias), product


def _of_rows(weight: Any, bias: Any, sizes: Any) -> tuple[Any, Any]:
    product = op.Gemm(op.Reshape(x, flat), weight, bias)
    return op.Reshape(product, sizes), product


@given
def _are_alike(heads: int, weights: Sequence[Matched], biases: Sequence[Matched]) -> bool:
    """As many columns for queries, keys and values, those of the heads, and biases for all."""
    rows, columns = weights[0].shape
    return (
        all(each.shape == (rows, columns) for each in weights)
        and all(each.shape == (columns,) for each in biases)
        and columns % heads == 0
    )


@given
def _are_used_once(values: Sequence[Matched]) -> bool:
    return all(value.is_single_use for value in values)


packed_attention = [
    rule(
        _ms.MultiHeadAttention(
            q[0], k[0], v[0], None, None, optional(mask), num_heads=heads, scale=scale
        )
        >> _ms.Attention(
            x,
            op.Concat(wq, wk, wv, axis=1),
            op.Concat(bq, bk, bv, axis=0),
            None,
            None,
            mask,
            num_heads=heads,
            scale=scale,
        ),
        where=_are_alike(heads, [wq, wk, wv], [bq, bk, bv])
        & (rank_of(x) == 3)
        & _are_used_once([*q, *k, *v, wq, wk, wv]),
        inexact=True,
        target="onnxruntime",
        doc="Queries, keys and values of one input are one product of it, inside the op.",
    )
    for form in (_of_all, _of_rows)
    for q, k, v in ((form(wq, bq, sizes), form(wk, bk, more_sizes), form(wv, bv, other_sizes)),)
]
