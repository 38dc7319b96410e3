"""What onnxruntime's MultiHeadAttention takes in: layouts, scales, the past (target "onnxruntime").

float32 only: for that onnxruntime's CPU provider has the kernel, which rounds its own way.
"""

from __future__ import annotations

from onnxfold.rewrite import (
    any_of,
    attributes,
    constant,
    constants,
    op,
    optional,
    outputs,
    rule,
    values,
)

q, k, v, x, mask, rest = values("q k v x mask *rest")
past_k, past_v, flat, sizes, more_sizes, other_sizes = values(
    "past_k past_v flat sizes more_sizes other_sizes"
)
one, other, ys, zs = values("one other *ys *zs")
factor, wq, wk, wv, bq, bk, bv = constants("factor wq wk wv bq bk bv")
alpha, axis, axis_too, heads, scale = attributes("alpha axis axis_too heads scale")

_ms = op.domain("com.microsoft")
_TURN = (0, 2, 1, 3)

# -------------------------------------------------------------------- keys and values as rows

_op = _ms.any_of("MultiHeadAttention")


# [batch, length, heads, size] as [batch, length, heads * size]
_k_flat = op.Reshape(k, constant(lambda k: (0, 0, k.shape[2] * k.shape[3])))
_v_flat = op.Reshape(v, constant(lambda v: (0, 0, v.shape[2] * v.shape[3])))

attention_of_rows = rule(
    _op(x, op.Transpose(k, perm=_TURN), op.Transpose(v, perm=_TURN), *rest)
    >> _op(x, _k_flat, _v_flat, *rest),
    inexact=True,
    target="onnxruntime",
    doc="MultiHeadAttention reads keys and values before their heads are transposed to the front.",
    seen_in="models/swin",
)

_scaled = op.Mul(x, factor).named("scaled")
_scale_taken = (any_of(op.Reshape(_scaled, sizes), _scaled), any_of(op.Reshape(x, sizes), x))

attention_of_scaled = [
    rule(
        _op(*before, scale=alpha) >> _op(*after, scale=lambda alpha, factor: alpha * factor.number),
        where=lambda x, alpha, factor, scaled: (
            factor.has_one_element
            and x.same_shape(scaled)
            and scaled.is_single_use
            and alpha * factor.number != 0
        ),
        inexact=True,
        target="onnxruntime",
        doc="A factor of the queries or keys goes into the scale of MultiHeadAttention.",
        seen_in="models/lora/dynamo",
    )
    for before, after in zip(*(((it, *rest), (q, it, *rest)) for it in _scale_taken), strict=True)
]

# -------------------------------------------------------------------- what came before

_keys = op.Concat(past_k, op.Transpose(k, perm=_TURN), axis=axis)
_values = op.Concat(past_v, op.Transpose(v, perm=_TURN), axis=axis_too)
_of_all = _op(x, _keys, _values, None, None, optional(mask))
_of_past = _op(x, _k_flat, _v_flat, None, None, mask, past_k, past_v)

attention_with_past = rule(
    outputs(_of_all, _keys, _values) >> outputs(_of_past[0], _of_past[1], _of_past[2]),
    where=lambda k, axis, axis_too, past_k, past_v: (
        {axis, axis_too} <= {2, -2} and k.rank == 4 and past_k.shape == past_v.shape
    ),
    inexact=True,
    target="onnxruntime",
    doc="Concat of past and new keys and values is done by MultiHeadAttention itself.",
    seen_in="torch/gpt2_past",
)

# -------------------------------------------------------------------- one product

# onnxruntime's own Attention makes queries, keys and values itself. On the CPU provider (1.32) it
# takes 3 to 8 % less time than three products and MultiHeadAttention at sizes of BERT and ViT up to
# 200 tokens, and as long at 512. One product whose result is split takes longer than three.
_projections = (
    any_of(
        op.Add(op.MatMul(x, weight), bias),
        op.Reshape(op.Gemm(op.Reshape(x, flat), weight, bias), size),
        op.MatMul(x, weight),
    )
    for weight, bias, size in ((wq, bq, sizes), (wk, bk, more_sizes), (wv, bv, other_sizes))
)

packed_attention = rule(
    _ms.MultiHeadAttention(*_projections, None, None, optional(mask), num_heads=heads, scale=scale)
    >> _ms.Attention(
        x,
        op.Concat(wq, wk, wv, axis=1),
        any_of(
            op.Concat(bq, bk, bv, axis=0),
            # onnxruntime up to 1.30 reads biases even if there are none, and crashes
            op.Expand(constant(0, like=wq), constant(lambda wq: [3 * wq.shape[1]])),
        ),
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
        lambda wq, bq=None, bk=None, bv=None: (
            bq is bk is bv
            or all(bias is not None and bias.shape == wq.shape[1:] for bias in (bq, bk, bv))
        ),
        lambda wq, wk, wv: wq.is_single_use and wk.is_single_use and wv.is_single_use,
        lambda result: all(
            value.is_single_use
            and (
                value.is_made_by("MatMul")
                or all(operand.is_constant or operand.is_single_use for operand in value.inputs)
            )
            for value in result.inputs[:3]
        ),
    ],
    inexact=True,
    target="onnxruntime",
    doc="Projections of one input to queries, keys and values become part of Attention: one"
    " product.",
    seen_in="models/t5-decoder",
)

# -------------------------------------------------------------------- repeated keys and values

# Exporters repeat keys and values until there are as many heads as for the queries. Here the
# queries that share a head stand one after the other instead, as if the sequence were longer:
# nothing is repeated but a mask. On onnxruntime's CPU provider (1.31) that takes a half to a
# quarter of the time for one new token after many, and as long for a whole prompt.
_keys = op.Expand(op.any_of("Unsqueeze")(k, *ys), one).named("keys")
_values = op.Expand(op.any_of("Unsqueeze")(v, *zs), other).named("values")
_by_group = op.Transpose(
    op.Reshape(x, constant(lambda k, keys: (0, 0, k.shape[1], keys.shape[2], k.shape[3]))),
    perm=(0, 3, 1, 2, 4),
)
_grouped = _ms.MultiHeadAttention(
    op.Reshape(_by_group, constant(lambda k: (0, -1, k.shape[1] * k.shape[3]))),
    k,
    v,
    None,
    None,
    op.Tile(mask, constant(lambda keys: (1, 1, keys.shape[2], 1))),
    num_heads=lambda k: k.shape[1],
    scale=scale,
)

attention_of_groups = rule(
    _ms.MultiHeadAttention(
        x,
        op.Reshape(_keys, sizes).named("all_keys"),
        op.Reshape(_values, more_sizes).named("all_values"),
        None,
        None,
        optional(mask),
        num_heads=heads,
        scale=scale,
    )
    >> op.Reshape(
        op.Transpose(
            op.Reshape(
                _grouped,
                constant(lambda k, keys: (0, keys.shape[2], -1, k.shape[1], k.shape[3])),
            ),
            perm=(0, 2, 3, 1, 4),
        ),
        constant(lambda k, heads: (0, 0, heads * k.shape[3])),
    ),
    where=[
        # [batch, heads before, length, size], each head several times, one after the other
        lambda k, v, keys, values, all_keys, all_values, heads: all(
            known.rank == 4
            and repeated.rank == 5
            and min(known.sizes_of((1, 3)) + repeated.sizes_of([2])) > 0
            and known.shape[1] * repeated.shape[2] == heads
            and repeated.shape == (*known.shape[:2], repeated.shape[2], *known.shape[2:])
            and joined.shape == (known.shape[0], heads, *known.shape[2:])
            for known, repeated, joined in ((k, keys, all_keys), (v, values, all_values))
        ),
        lambda mask=None: mask is None or (mask.rank == 4 and mask.shape[1] == 1),
    ],
    inexact=True,
    target="onnxruntime",
    doc="Keys and values that are repeated for groups of query heads are not repeated: the queries"
    " of a group follow each other as if the sequence were longer.",
    seen_in="models/lora/torchscript",
)
