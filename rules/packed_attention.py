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
    constant,
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


def _without_bias(weight: Any, bias: Any, sizes: Any) -> tuple[Any, Any]:
    product = op.MatMul(x, weight)
    return product, product


@given
def _are_alike(
    heads: int,
    wq: Matched,
    wk: Matched,
    wv: Matched,
    bq: Matched | None = None,
    bk: Matched | None = None,
    bv: Matched | None = None,
) -> bool:
    """As many columns for queries, keys and values, those of the heads; biases for all or none."""
    columns = wq.shape[1]
    return (
        wq.shape == wk.shape == wv.shape
        and all(bias is None or bias.shape == (columns,) for bias in (bq, bk, bv))
        and columns % heads == 0
    )


@given
def _three_of(wq: Matched) -> list[int]:
    return [3 * wq.shape[1]]


# onnxruntime up to 1.30 reads biases even if there are none, and crashes.
_no_biases = op.Expand(constant(0, like=wq), constant(_three_of(wq)))


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
            biases,
            None,
            None,
            mask,
            num_heads=heads,
            scale=scale,
        ),
        where=_are_alike & (rank_of(x) == 3) & _are_used_once([*q, *k, *v, wq, wk, wv]),
        inexact=True,
        target="onnxruntime",
        doc="Queries, keys and values of one input are one product of it, inside the op.",
        seen_in="models/t5-decoder",
    )
    for form, biases in (
        (_of_all, op.Concat(bq, bk, bv, axis=0)),
        (_of_rows, op.Concat(bq, bk, bv, axis=0)),
        (_without_bias, _no_biases),
    )
    for q, k, v in ((form(wq, bq, sizes), form(wk, bk, more_sizes), form(wv, bv, other_sizes)),)
]
