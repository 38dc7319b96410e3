"""Fuse attention into one op of onnxruntime, with what surrounds it (target "onnxruntime").

Heads and their sizes are inferred from shapes, the scale from the product with it. Keys and values
have any source, with shape [batch, heads, length, size]: with a past, rotated, or repeated. float32
only: the CPU provider's kernel is for that, and rounds differently.

A Transpose after the block must move its heads behind the length, as the op does: blocks of GPT-2,
Llama and ViT take 0.85 to 0.9 of the time (release 1.32, one thread). For other layouts
(`nn.MultiheadAttention`, SAM), the op took 1 to 10 % longer than the two products and the Softmax;
with batch and heads on one axis, from 12 % less to 70 % more.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rules.onnxruntime_target import TURN, fusion, ms

from onnxfold.rewrite import *


@fusion(opset=10, seen_in="models/swin")
def attention(q, k, kt, v, mask, keep, hide, low, factor, divisor, alpha: Attribute):
    """softmax(q @ k^T * scale + mask) @ v becomes MultiHeadAttention."""
    product = any_of(
        op.MatMul(q, kt),
        ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
        ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
    )
    scores = any_of(op.Mul(product, factor), op.Div(product, divisor), product)

    def kept(values: Any) -> Any:
        return any_of(op.Where(keep, values, low), op.Where(hide, low, values))

    total = op.Add(scores, mask)
    masked = any_of(kept(total), total, kept(scores), scores)
    weights = op.Softmax(masked, axis=anything)
    # a fully masked row gives zeros, or NaN
    zero = filled(0)
    guarded = any_of(op.Where(op.IsNaN(weights), zero, weights), weights)

    # the mask as a value added to the scores
    added = any_of(kept(mask), mask, kept(constant(0.0, like=q)))
    heads = q.shape[1]
    scale = alpha.or_else(1.0) * factor.number.or_else(1) / divisor.number.or_else(1)
    query = op.Reshape(op.Transpose(q, perm=TURN), constant((0, 0, heads * q.shape[3])))
    keys = any_of(k, op.Transpose(kt, perm=(0, 1, 3, 2)))
    rows = op.Slice(op.Shape(query), constant([1]), constant([2]))
    columns = op.Slice(op.Shape(v), constant([2]), constant([3]))
    bias = op.Expand(added, op.Concat(constant([1, 1]), rows, columns, axis=0))
    fused = ms.MultiHeadAttention(query, keys, v, None, None, bias, num_heads=heads, scale=scale)
    guarded_too = any_of(op.Where(op.IsNaN(fused), zero, fused), fused)
    after = op.Reshape(guarded_too, constant((0, 0, heads, q.shape[3])))
    return op.Transpose(op.MatMul(guarded, v), perm=TURN) >> after, where(
        q.dtype == FLOAT,
        # operands have the same batch, heads and head size: only the mask is broadcast
        weights.axes == (3,),
        # the last axis is that of the values, or the product with them fails
        weights.shape[:-1] == q.shape[:-1],
        q.sizes_of((1, 3)).smallest > 0,
        v.rank == 4,
        v.shape == (*q.shape[:2], v.shape[2], q.shape[3]),
        k.is_omitted | (k.shape == v.shape),
        kt.is_omitted | (kt.shape == (*q.shape[:2], q.shape[3], v.shape[2])),
        # replacing a score by this value has the same effect as adding it
        low.is_omitted | (low.number <= -1e30),
        zero.is_omitted | zero.shape.is_in((), (1,)),
        divisor.number.or_else(1) != 0,
        # as a scale, 0 is the usual one
        scale != 0,
    )


def _flat(k: Value) -> Any:
    """Return a shape [batch, length, heads, size] as [batch, length, heads * size]."""
    return op.Reshape(k, constant((0, 0, k.shape[2] * k.shape[3])))


@fusion(seen_in="models/swin")
def attention_of_rows(x, k, v, padding, mask):
    """MultiHeadAttention reads keys and values before their heads are transposed to the front."""
    fused = ms("MultiHeadAttention")
    masks = (None, optional(padding), optional(mask))
    before = fused(x, op.Transpose(k, perm=TURN), op.Transpose(v, perm=TURN), *masks)
    return before >> fused(x, _flat(k), _flat(v), *masks)


@fusion(each=[(False,), (True,)], seen_in="models/lora/dynamo")
def attention_of_scaled(y, x, v, sizes, factor: Constant, alpha: Attribute, rest: Values, of_keys):
    """A factor of the queries or keys is merged into the scale of MultiHeadAttention."""
    fused = ms("MultiHeadAttention")
    scaled = op.Mul(x, factor)
    total = alpha * factor.number

    def of(x: Any, scale: Any) -> Any:
        part = any_of(op.Reshape(x, sizes), x)
        operands = (y, part, v) if of_keys else (part, y, v)
        return any_of(fused(*operands, None, *rest, scale=scale), fused(*operands, scale=scale))

    # the scale is for the keys of a past, too
    has_no_past = [rest.length <= 2] if of_keys else []
    return of(scaled, alpha) >> of(x, total), where(
        x.same_shape(scaled), scaled.is_single_use, total != 0, *has_no_past
    )


@fusion(seen_in="torch/gpt2_past")
def attention_with_past(x, k, v, mask, past_k, past_v, axis: Attribute, axis_too: Attribute):
    """Concat of past and new keys and values is done by MultiHeadAttention itself."""
    fused = ms("MultiHeadAttention")
    keys = op.Concat(past_k, op.Transpose(k, perm=TURN), axis=axis)
    values = op.Concat(past_v, op.Transpose(v, perm=TURN), axis=axis_too)
    of_all = fused(x, keys, values, None, None, optional(mask))
    of_past = fused(x, _flat(k), _flat(v), None, None, mask, past_k, past_v)
    return outputs(of_all, keys, values) >> outputs(of_past[0], of_past[1], of_past[2]), where(
        # both have the same axis, as keys and values have the same shape
        axis.is_in(2, -2),
        past_k.shape == past_v.shape,
        # a causal mask would begin at the past
        of_all.attribute("unidirectional", 0) == 0,
    )


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
    """Projections of an input to queries, keys and values become part of Attention: one product."""
    projections = []
    conditions = []
    for weight, bias in ((wq, bq), (wk, bk), (wv, bv)):
        product = op.MatMul(x, weight)
        gemm = op.Gemm(op.Reshape(x, anything), weight, bias)
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
    # the op reads [batch, length, size], Gemms the rows of an input of any shape
    sizes = result.sizes_for_reshape(x.shape)
    rows = op.Reshape(x, constant((sizes[0], sizes[1], wq.shape[0])))
    after = ms.Attention(rows, weights, biases, None, None, mask, num_heads=heads, scale=scale)
    return before >> after, where(
        wq.rank == 2,
        # the same number of columns for queries, keys and values, that of the heads
        wq.shape == wk.shape,
        wq.shape == wv.shape,
        (bq.is_omitted & bk.is_omitted & bv.is_omitted)
        | ((bq.shape == wq.shape[1:]) & (bk.shape == bq.shape) & (bv.shape == bq.shape)),
        # keys and values of four axes are [batch, heads, length, size]
        projections[1].rank == 3,
        *conditions,
    )


# Exporters repeat keys and values to match the number of query heads. Here the queries that share a
# head are concatenated instead, like a longer sequence: only a mask is repeated. On onnxruntime's
# CPU provider (1.31), this takes a half to a quarter of the time for one new token after many, and
# as long for a whole prompt.
@fusion(seen_in="models/lora/torchscript")
def attention_of_groups(x, k, v, mask, heads: Attribute, scale: Attribute):
    """Repeated keys and values of grouped query heads are not repeated: the queries of a group are
    concatenated to a longer sequence.
    """
    key, value = (op("Unsqueeze")(known, optional(anything)) for known in (k, v))
    keys = op.Expand(key, anything)
    values = op.Expand(value, anything)
    all_keys = op.Reshape(keys, anything)
    all_values = op.Reshape(values, anything)
    before = ms.MultiHeadAttention(
        x, all_keys, all_values, None, None, optional(mask), num_heads=heads, scale=scale
    )
    groups = k.shape[1]
    repeats = keys.shape[2]
    size = k.shape[3]
    per_group = constant((0, 0, groups, repeats, size))
    by_group = op.Transpose(op.Reshape(x, per_group), perm=(0, 3, 1, 2, 4))
    queries = op.Reshape(by_group, constant((0, -1, groups * size)))
    bias = op.Tile(mask, constant((1, 1, repeats, 1)))
    grouped = ms.MultiHeadAttention(queries, k, v, None, None, bias, num_heads=groups, scale=scale)
    apart = op.Reshape(grouped, constant((0, repeats, -1, groups, size)))
    in_order = op.Transpose(apart, perm=(0, 2, 3, 1, 4))
    return before >> op.Reshape(in_order, constant((0, 0, heads * size))), where(
        k.rank == 4,
        # [batch, heads before, 1, length, size], each head repeated consecutively
        key.shape == (*k.shape[:2], 1, *k.shape[2:]),
        value.shape == (*v.shape[:2], 1, *v.shape[2:]),
        values.shape == (*v.shape[:2], repeats, *v.shape[2:]),
        all_keys.shape == (k.shape[0], heads, *k.shape[2:]),
        all_values.shape == (v.shape[0], heads, *v.shape[2:]),
        mask.is_omitted | ((mask.rank == 4) & (mask.shape[1] == 1)),
    )
