"""Attention with fewer heads of keys and values than of queries (target "onnxruntime").

Exporters repeat keys and values until there are as many heads. Here the queries that share a head
stand one after the other instead, as if the sequence were longer: nothing is repeated but a mask.
On onnxruntime's CPU provider (1.31) that takes a half to a quarter of the time for one new token
after many, and as long for a whole prompt.
"""

from __future__ import annotations

from onnxfold.rewrite import attributes, constant, op, optional, rule, values

x, k, v, mask, sizes, more_sizes, one, other = values("x k v mask sizes more_sizes one other")
ys, zs = values("*ys *zs")
heads, scale = attributes("heads scale")

_ms = op.domain("com.microsoft")

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
