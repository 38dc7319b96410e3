"""The products of self-attention as one (target "onnxruntime"): their weights become one constant.

onnxruntime's own Attention makes queries, keys and values itself. On the CPU provider (1.32) it
takes 3 to 8 % less time than three products and MultiHeadAttention at sizes of BERT and ViT up to
200 tokens, and as long at 512. One product whose result is split takes longer than three.
"""

from __future__ import annotations

from onnxfold.rewrite import attributes, constant, constants, op, optional, rule, values

x, mask, flat, sizes, more_sizes, other_sizes = values("x mask flat sizes more_sizes other_sizes")
wq, wk, wv, bq, bk, bv = constants("wq wk wv bq bk bv")
heads, scale = attributes("heads scale")

_ms = op.domain("com.microsoft")


_PARTS = ((wq, bq, sizes, "q"), (wk, bk, more_sizes, "k"), (wv, bv, other_sizes, "v"))
_of_all = [
    op.Add(op.MatMul(x, weight).named(f"product_{name}"), bias).named(name)
    for weight, bias, _, name in _PARTS
]
_of_rows = [
    op.Reshape(op.Gemm(op.Reshape(x, flat), weight, bias).named(f"product_{name}"), size).named(
        name
    )
    for weight, bias, size, name in _PARTS
]
_without_bias = [op.MatMul(x, weight).named(name) for weight, _, _, name in _PARTS]

packed_attention = [
    rule(
        _ms.MultiHeadAttention(
            *projections,
            None,
            None,
            optional(mask),
            num_heads=heads,
            scale=scale,
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
        where=[
            # as many columns for queries, keys and values, those of the heads
            lambda x, wq, wk, wv, heads: (
                x.rank == 3 and wq.shape == wk.shape == wv.shape and wq.shape[1] % heads == 0
            ),
            lambda wq, bq=None, bk=None, bv=None: all(
                bias is None or bias.shape == (wq.shape[1],) for bias in (bq, bk, bv)
            ),
            lambda q, k, v, wq, wk, wv, product_q=None, product_k=None, product_v=None: all(
                value is None or value.is_single_use
                for value in (q, k, v, wq, wk, wv, product_q, product_k, product_v)
            ),
        ],
        inexact=True,
        target="onnxruntime",
        doc="Projections of one input to queries, keys and values become part of Attention: one"
        " product.",
        seen_in="models/t5-decoder",
    )
    for projections, biases in (
        (_of_all, op.Concat(bq, bk, bv, axis=0)),
        (_of_rows, op.Concat(bq, bk, bv, axis=0)),
        # onnxruntime up to 1.30 reads biases even if there are none, and crashes
        (
            _without_bias,
            op.Expand(constant(0, like=wq), constant(lambda wq: [3 * wq.shape[1]])),
        ),
    )
]
