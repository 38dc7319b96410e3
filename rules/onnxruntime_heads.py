"""Merge layouts, scales and the past into onnxruntime's MultiHeadAttention (target "onnxruntime").

float32 only: the CPU provider's kernel is for that, and rounds differently.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rules.onnxruntime_target import fusion, ms

from onnxfold.rewrite import (
    Attribute,
    Constant,
    Value,
    Values,
    any_of,
    anything,
    constant,
    op,
    optional,
    outputs,
    result,
    where,
)

_TURN = (0, 2, 1, 3)

# -------------------------------------------------------------------- keys and values as rows


def _flat(k: Value) -> Any:
    """Return a shape [batch, length, heads, size] as [batch, length, heads * size]."""
    return op.Reshape(k, constant((0, 0, k.shape[2] * k.shape[3])))


@fusion(seen_in="models/swin")
def attention_of_rows(x, k, v, *rest):
    """MultiHeadAttention reads keys and values before their heads are transposed to the front."""
    fused = ms("MultiHeadAttention")
    before = fused(x, op.Transpose(k, perm=_TURN), op.Transpose(v, perm=_TURN), *rest)
    return before >> fused(x, _flat(k), _flat(v), *rest)


@fusion(each=[(True,), (False,)], seen_in="models/lora/dynamo")
def attention_of_scaled(q, x, sizes, factor: Constant, alpha: Attribute, rest: Values, of_queries):
    """A factor of the queries or keys is merged into the scale of MultiHeadAttention."""
    fused = ms("MultiHeadAttention")
    scaled = op.Mul(x, factor)
    before = any_of(op.Reshape(scaled, sizes), scaled)
    after = any_of(op.Reshape(x, sizes), x)
    first = () if of_queries else (q,)
    return fused(*first, before, *rest, scale=alpha) >> fused(
        *first, after, *rest, scale=alpha * factor.number
    ), where(
        x.same_shape(scaled),
        scaled.is_single_use,
        alpha * factor.number != 0,
    )


# -------------------------------------------------------------------- what came before


@fusion(seen_in="torch/gpt2_past")
def attention_with_past(x, k, v, mask, past_k, past_v, axis: Attribute, axis_too: Attribute):
    """Concat of past and new keys and values is done by MultiHeadAttention itself."""
    fused = ms("MultiHeadAttention")
    keys = op.Concat(past_k, op.Transpose(k, perm=_TURN), axis=axis)
    values = op.Concat(past_v, op.Transpose(v, perm=_TURN), axis=axis_too)
    of_all = fused(x, keys, values, None, None, optional(mask))
    of_past = fused(x, _flat(k), _flat(v), None, None, mask, past_k, past_v)
    return outputs(of_all, keys, values) >> outputs(of_past[0], of_past[1], of_past[2]), where(
        # both have the same axis, as keys and values have the same shape
        axis.is_in(2, -2),
        past_k.shape == past_v.shape,
    )


# -------------------------------------------------------------------- one product


# onnxruntime's own Attention computes queries, keys and values itself. On the CPU provider (1.32)
# it takes 3 to 8 % less time than three products and MultiHeadAttention for sizes of BERT and ViT
# up to 200 tokens, and as long for 512. One product with a split result takes longer than three.
@fusion(seen_in="models/t5-decoder")
def packed_attention(
    x,
    mask,
    wq: Constant,
    wk: Constant,
    wv: Constant,
    bq: Constant,
    bk: Constant,
    bv: Constant,
    heads: Attribute,
    scale: Attribute,
):
    """Projections of one input to queries, keys and values become part of Attention: one
    product.
    """
    projections, conditions = [], []
    for weight, bias in ((wq, bq), (wk, bk), (wv, bv)):
        product, gemm = op.MatMul(x, weight), op.Gemm(op.Reshape(x, anything), weight, bias)
        projection = any_of(op.Add(product, bias), op.Reshape(gemm, anything), op.MatMul(x, weight))
        projections.append(projection)
        # they have no other users
        conditions += [
            projection.is_single_use,
            weight.is_single_use,
            product.is_omitted | product.is_single_use,
            gemm.is_omitted | gemm.is_single_use,
        ]
    before = ms.MultiHeadAttention(
        *projections, None, None, optional(mask), num_heads=heads, scale=scale
    )
    biases = any_of(
        op.Concat(bq, bk, bv, axis=0),
        # onnxruntime up to 1.30 reads biases even if there are none, and crashes
        op.Expand(constant(0, like=wq), constant((3 * wq.shape[1],))),
    )
    weights = op.Concat(wq, wk, wv, axis=1)
    return before >> ms.Attention(
        x, weights, biases, None, None, mask, num_heads=heads, scale=scale
    ), where(
        x.rank == 3,
        result.shape[:2] == x.shape[:2],
        # the same number of columns for queries, keys and values, that of the heads
        wq.shape == wk.shape,
        wq.shape == wv.shape,
        (bq.is_omitted & bk.is_omitted & bv.is_omitted)
        | ((bq.shape == wq.shape[1:]) & (bk.shape == bq.shape) & (bv.shape == bq.shape)),
        *conditions,
    )


# -------------------------------------------------------------------- repeated keys and values


# Exporters repeat keys and values to match the number of query heads. Here the queries that share a
# head are concatenated instead, like a longer sequence: only a mask is repeated. On onnxruntime's
# CPU provider (1.31), this takes a half to a quarter of the time for one new token after many, and
# as long for a whole prompt.
@fusion(seen_in="models/lora/torchscript")
def attention_of_groups(
    x,
    k,
    v,
    mask,
    heads: Attribute,
    scale: Attribute,
    ys: Values,
    zs: Values,
):
    """Repeated keys and values of grouped query heads are not repeated: the queries of a group are
    concatenated to a longer sequence.
    """
    keys = op.Expand(op("Unsqueeze")(k, *ys), anything)
    values = op.Expand(op("Unsqueeze")(v, *zs), anything)
    all_keys, all_values = op.Reshape(keys, anything), op.Reshape(values, anything)
    before = ms.MultiHeadAttention(
        x, all_keys, all_values, None, None, optional(mask), num_heads=heads, scale=scale
    )
    per_group = constant((0, 0, k.shape[1], keys.shape[2], k.shape[3]))
    by_group = op.Transpose(op.Reshape(x, per_group), perm=(0, 3, 1, 2, 4))
    grouped = ms.MultiHeadAttention(
        op.Reshape(by_group, constant((0, -1, k.shape[1] * k.shape[3]))),
        k,
        v,
        None,
        None,
        op.Tile(mask, constant((1, 1, keys.shape[2], 1))),
        num_heads=k.shape[1],
        scale=scale,
    )
    apart = op.Reshape(grouped, constant((0, keys.shape[2], -1, k.shape[1], k.shape[3])))
    in_order = op.Transpose(apart, perm=(0, 2, 3, 1, 4))
    conditions = []
    for known, repeated, joined in ((k, keys, all_keys), (v, values, all_values)):
        # [batch, heads before, length, size], each head repeated consecutively
        conditions += [
            repeated.shape == (*known.shape[:2], keys.shape[2], *known.shape[2:]),
            joined.shape == (known.shape[0], heads, *known.shape[2:]),
        ]
    return before >> op.Reshape(in_order, constant((0, 0, heads * k.shape[3]))), where(
        k.rank == 4, *conditions, mask.is_omitted | ((mask.rank == 4) & (mask.shape[1] == 1))
    )
