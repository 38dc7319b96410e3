"""Attention with fewer heads of keys and values than of queries (target "onnxruntime").

Exporters repeat keys and values until there are as many heads. Here the queries that share a head
stand one after the other instead, as if the sequence were longer: nothing is repeated but a mask.
On onnxruntime's CPU provider (1.31) that takes a half to a quarter of the time for one new token
after many, and as long for a whole prompt.
"""

from __future__ import annotations

from onnxfold.rewrite import Matched, attributes, constant, op, optional, rule, values

x, k, v, mask, sizes, more_sizes, one, other = values("x k v mask sizes more_sizes one other")
ys, zs = values("*ys *zs")
heads, scale = attributes("heads scale")

_ms = op.domain("com.microsoft")


def _is_repeated(value: Matched, repeated: Matched, joined: Matched, heads: int) -> bool:
    """Return whether each head is there several times, one after the other.

    Args:
        value: Keys or values: [batch, heads before, length, size].
        repeated: [batch, heads before, times, length, size].
        joined: [batch, heads, length, size].
        heads: The number of heads in all.
    """
    if value.rank != 4 or repeated.rank != 5:
        return False
    batch, own, length, size = value.shape
    times = repeated.shape[2]
    return (
        all(isinstance(number, int) and number > 0 for number in (own, times, size))
        and own * times == heads
        and repeated.shape == (batch, own, times, length, size)
        and joined.shape == (batch, heads, length, size)
    )


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
        lambda k, keys, all_keys, heads: _is_repeated(k, keys, all_keys, heads),
        lambda v, values, all_values, heads: _is_repeated(v, values, all_values, heads),
        lambda mask=None: mask is None or (mask.rank == 4 and mask.shape[1] == 1),
    ],
    inexact=True,
    target="onnxruntime",
    doc="Heads of keys and values are read by several queries, and not repeated for them.",
    seen_in="models/lora/torchscript",
)
