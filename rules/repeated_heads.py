"""Attention with fewer heads of keys and values than of queries (target "onnxruntime").

Exporters repeat keys and values until there are as many heads. Here the queries that share a head
stand one after the other instead, as if the sequence were longer: nothing is repeated but a mask.
On onnxruntime's CPU provider (1.31) that takes a half to a quarter of the time for one new token
after many, and as long for a whole prompt.
"""

from __future__ import annotations

from onnxfold.rewrite import (
    Matched,
    attributes,
    constant,
    given,
    op,
    optional,
    rule,
    shape_of,
    values,
)

x, k, v, mask, sizes, more_sizes, one, other = values("x k v mask sizes more_sizes one other")
ys, zs = values("*ys *zs")
heads, scale = attributes("heads scale")

_ms = op.domain("com.microsoft")


@given
def is_repeated(repeated: Matched, value: Matched, heads: int) -> bool:
    """[batch, heads, length, size] became [batch, heads, times, length, size], all heads in one."""
    if value.rank != 4 or repeated.rank != 5:
        return False
    batch, own, length, size = value.shape
    times = repeated.shape[2]
    return (
        all(isinstance(number, int) and number > 0 for number in (own, times, size))
        and own * times == heads
        and repeated.shape == (batch, own, times, length, size)
    )


@given
def is_joined(joined: Matched, value: Matched, heads: int) -> bool:
    """[batch, heads, length, size], all heads on one axis."""
    batch, _, length, size = value.shape
    return joined.shape == (batch, heads, length, size)


@given
def _is_for_all_heads(mask: Matched | None = None) -> bool:
    return mask is None or (mask.rank == 4 and mask.shape[1] == 1)


_keys_apart, _values_apart = op.any_of("Unsqueeze"), op.any_of("Unsqueeze")
repeated_keys = op.Expand(_keys_apart(k, *ys), one)
repeated_values = op.Expand(_values_apart(v, *zs), other)
all_keys, all_values = op.Reshape(repeated_keys, sizes), op.Reshape(repeated_values, more_sizes)
_own, _times, _size = shape_of(k)[1], shape_of(repeated_keys)[2], shape_of(k)[3]
_by_group = op.Transpose(op.Reshape(x, constant((0, 0, _own, _times, _size))), perm=(0, 3, 1, 2, 4))
_grouped = _ms.MultiHeadAttention(
    op.Reshape(_by_group, constant((0, -1, _own * _size))),
    k,
    v,
    None,
    None,
    op.Tile(mask, constant((1, 1, _times, 1))),
    num_heads=_own,
    scale=scale,
)

attention_of_groups = rule(
    _ms.MultiHeadAttention(
        x, all_keys, all_values, None, None, optional(mask), num_heads=heads, scale=scale
    )
    >> op.Reshape(
        op.Transpose(
            op.Reshape(_grouped, constant((0, _times, -1, _own, _size))), perm=(0, 2, 3, 1, 4)
        ),
        constant((0, 0, heads * _size)),
    ),
    where=is_repeated(repeated_keys, k, heads)
    & is_repeated(repeated_values, v, heads)
    & is_joined(all_keys, k, heads)
    & is_joined(all_values, v, heads)
    & _is_for_all_heads,
    inexact=True,
    target="onnxruntime",
    doc="Heads of keys and values are read by several queries, and not repeated for them.",
    seen_in="models/lora/torchscript",
)
