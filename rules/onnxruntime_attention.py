"""Fuse attention and the adjacent ops into one op of onnxruntime (target "onnxruntime").

The rules read the number and size of heads from shapes, and the scale from a factor of the scores.
Keys and values may have any source, such as a past, a rotation, or repeated heads. Keys and values
have the shape [batch, heads, length, size]. The rules are for float32 only, for which the CPU
provider has the kernel. The kernel rounds differently.

A Transpose after the block must move the axis of the heads after the length, as the op does. Blocks
of GPT-2, Llama and ViT then take 0.85 to 0.9 of the time (onnxruntime 1.32, one thread). For other
layouts (`nn.MultiheadAttention`, SAM), the op took 1 to 10 % longer than the two products and the
Softmax. With batch and heads on one axis, the op took from 12 % less to 70 % more.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rules.onnxruntime_target import SWAP_HEADS, fusion, ms

from onnxfold.rewrite import *


@fusion(opset=10, seen_in="models/swin")
def attention(q, k, kt, v, mask, keep, hide, low, factor, divisor, alpha: Attribute):
    """Transpose(softmax(q @ k^T * scale + mask) @ v) == MultiHeadAttention(q, k, v, mask)."""
    product = any_of(
        op.MatMul(q, kt),
        ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
        ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
    )
    scores = any_of(op.Mul(product, factor), op.Div(product, divisor), product)

    def selected(values: Any) -> Any:
        return any_of(op.Where(keep, values, low), op.Where(hide, low, values))

    total = op.Add(scores, mask)
    masked = any_of(selected(total), total, selected(scores), scores)
    weights = op.Softmax(masked, axis=anything)
    # the weights of a completely masked query are NaN, which the model may replace by zeros
    zero = filled(0)
    guarded = any_of(op.Where(op.IsNaN(weights), zero, weights), weights)

    # the mask as a term of the scores
    added = any_of(selected(mask), mask, selected(constant(0.0, like=q)))
    heads = q.shape[1]
    scale = alpha.or_else(1.0) * factor.number.or_else(1) / divisor.number.or_else(1)
    query = op.Reshape(op.Transpose(q, perm=SWAP_HEADS), constant((0, 0, heads * q.shape[3])))
    keys = any_of(k, op.Transpose(kt, perm=(0, 1, 3, 2)))
    rows = op.Slice(op.Shape(query), constant([1]), constant([2]))
    columns = op.Slice(op.Shape(v), constant([2]), constant([3]))
    bias = op.Expand(added, op.Concat(constant([1, 1]), rows, columns, axis=0))
    fused = ms.MultiHeadAttention(query, keys, v, None, None, bias, num_heads=heads, scale=scale)
    guarded_result = any_of(op.Where(op.IsNaN(fused), zero, fused), fused)
    after = op.Reshape(guarded_result, constant((0, 0, heads, q.shape[3])))
    return op.Transpose(op.MatMul(guarded, v), perm=SWAP_HEADS) >> after, where(
        q.dtype == FLOAT,
        # the operands have the same batch, heads and head size; only the mask is broadcast
        weights.axes == (3,),
        # the last axis has the length of the values, because the product with v fails otherwise
        weights.shape[:-1] == q.shape[:-1],
        q.sizes_of((1, 3)).smallest > 0,
        v.rank == 4,
        v.shape == (*q.shape[:2], v.shape[2], q.shape[3]),
        k.is_omitted | (k.shape == v.shape),
        kt.is_omitted | (kt.shape == (*q.shape[:2], q.shape[3], v.shape[2])),
        # replacing a score by such a number has the same effect as adding the number
        low.is_omitted | (low.number <= -1e30),
        zero.is_omitted | zero.shape.is_in((), (1,)),
        divisor.number.or_else(1) != 0,
        # onnxruntime replaces a scale of 0 by the default
        scale != 0,
    )


def _flat(k: Value) -> Any:
    """Return ``k`` of shape [batch, length, heads, size] as [batch, length, heads * size]."""
    return op.Reshape(k, constant((0, 0, k.shape[2] * k.shape[3])))


@fusion(seen_in="models/swin")
def attention_of_rows(x, k, v, padding, mask):
    """MultiHeadAttention(x, Transpose(k), Transpose(v)) == MultiHeadAttention(x, Reshape(k),
    Reshape(v)).
    """
    fused = ms("MultiHeadAttention")
    masks = (None, optional(padding), optional(mask))
    before = fused(x, op.Transpose(k, perm=SWAP_HEADS), op.Transpose(v, perm=SWAP_HEADS), *masks)
    return before >> fused(x, _flat(k), _flat(v), *masks)


@fusion(each=[(False,), (True,)], seen_in="models/lora/dynamo")
def attention_of_scaled(
    y, x, v, sizes, factor: Constant, alpha: Attribute, further: Values, is_key
):
    """MultiHeadAttention(x * c, k, v, scale=s) == MultiHeadAttention(x, k, v, scale=s * c) for one
    number c, also for a factor of the keys.
    """
    fused = ms("MultiHeadAttention")
    scaled = op.Mul(x, factor)
    new_scale = alpha * factor.number

    def attention_of(x: Any, scale: Any) -> Any:
        operand = any_of(op.Reshape(x, sizes), x)
        operands = (y, operand, v) if is_key else (operand, y, v)
        return any_of(fused(*operands, None, *further, scale=scale), fused(*operands, scale=scale))

    # a factor of the keys does not apply to the keys of a past, but the scale does
    has_no_past = [further.length <= 2] if is_key else []
    return attention_of(scaled, alpha) >> attention_of(x, new_scale), where(
        x.same_shape(scaled), scaled.is_single_use, new_scale != 0, *has_no_past
    )


@fusion(seen_in="torch/gpt2_past")
def attention_with_past(x, k, v, mask, past_k, past_v, axis: Attribute, value_axis: Attribute):
    """MultiHeadAttention(x, Concat(p, k), Concat(q, v)) == MultiHeadAttention(x, k, v, past_key=p,
    past_value=q).
    """
    fused = ms("MultiHeadAttention")
    keys = op.Concat(past_k, op.Transpose(k, perm=SWAP_HEADS), axis=axis)
    values = op.Concat(past_v, op.Transpose(v, perm=SWAP_HEADS), axis=value_axis)
    before = fused(x, keys, values, None, None, optional(mask))
    after = fused(x, _flat(k), _flat(v), None, None, mask, past_k, past_v)
    return outputs(before, keys, values) >> outputs(after[0], after[1], after[2]), where(
        # both Concats have the same axis, because keys and values have the same shape
        axis.is_in(2, -2),
        past_k.shape == past_v.shape,
        # with a past, the causal mask would start at the first position of the past
        before.attribute("unidirectional", 0) == 0,
    )


# onnxruntime's Attention also computes queries, keys and values. On the CPU provider (1.32), this
# op takes 3 to 8 % less time than three products and MultiHeadAttention for sizes of BERT and ViT
# up to 200 tokens. For 512 tokens, it takes the same time. One product with a split result takes
# longer than three products.
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
    """MultiHeadAttention(x @ wq + bq, x @ wk + bk, x @ wv + bv) == Attention(x, Concat(wq, wk, wv),
    Concat(bq, bk, bv)): the three products become one.
    """
    projections = []
    conditions = []
    for weight, bias in ((wq, bq), (wk, bk), (wv, bv)):
        product = op.MatMul(x, weight)
        gemm = op.Gemm(op.Reshape(x, anything), weight, bias)
        projection = any_of(op.Add(product, bias), op.Reshape(gemm, anything), op.MatMul(x, weight))
        projections.append(projection)
        # the products have no other consumers
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
        # onnxruntime up to 1.30 crashes without biases
        op.Expand(constant(0, like=wq), constant((3 * wq.shape[1],))),
    )
    weights = op.Concat(wq, wk, wv, axis=1)
    # the op requires [batch, length, size]; the Gemms read the rows of an input of any shape
    sizes = result.sizes_for_reshape(x.shape)
    rows = op.Reshape(x, constant((sizes[0], sizes[1], wq.shape[0])))
    after = ms.Attention(rows, weights, biases, None, None, mask, num_heads=heads, scale=scale)
    return before >> after, where(
        wq.rank == 2,
        # queries, keys and values have the same number of columns
        wq.shape == wk.shape,
        wq.shape == wv.shape,
        (bq.is_omitted & bk.is_omitted & bv.is_omitted)
        | ((bq.shape == wq.shape[1:]) & (bk.shape == bq.shape) & (bv.shape == bq.shape)),
        # keys and values of four axes are [batch, heads, length, size]
        projections[1].rank == 3,
        *conditions,
    )


# Exporters repeat keys and values to match the number of query heads. The rule concatenates the
# queries of a group to a longer sequence instead, and repeats only a mask. On onnxruntime's CPU
# provider (1.31), the result takes a half to a quarter of the time for one new token after many,
# and the same time for a prompt.
@fusion(seen_in="models/lora/torchscript")
def attention_of_groups(x, k, v, mask, heads: Attribute, scale: Attribute):
    """MultiHeadAttention(x, repeat(k), repeat(v)) == MultiHeadAttention(Concat(x), k, v): the
    queries of a group form a longer sequence.
    """
    key, value = (op("Unsqueeze")(each, optional(anything)) for each in (k, v))
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
    by_repeat = op.Reshape(grouped, constant((0, repeats, -1, groups, size)))
    in_order = op.Transpose(by_repeat, perm=(0, 2, 3, 1, 4))
    return before >> op.Reshape(in_order, constant((0, 0, heads * size))), where(
        k.rank == 4,
        # the Expand of [batch, groups, 1, length, size] repeats each head consecutively
        key.shape == (*k.shape[:2], 1, *k.shape[2:]),
        value.shape == (*v.shape[:2], 1, *v.shape[2:]),
        values.shape == (*v.shape[:2], repeats, *v.shape[2:]),
        all_keys.shape == (k.shape[0], heads, *k.shape[2:]),
        all_values.shape == (v.shape[0], heads, *v.shape[2:]),
        mask.is_omitted | ((mask.rank == 4) & (mask.shape[1] == 1)),
    )
