"""Fuse rotary position embeddings into one op of onnxruntime (target "onnxruntime").

The halves of every head are rotated by angles that are the same for all heads. The op reads cosines
and sines from tables by position; here the tables are those computed by the model, one half of
them, as exporters compute both. float32 only, for which the CPU provider has the kernel.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rules.onnxruntime_target import TURN, fusion, ms

from onnxfold.rewrite import *


def _positions(table: Value, has_batch: bool) -> Any:
    """Return [batch, length], the rows of the tables for all sequences, or the first row if the
    angles are the same for the batch.
    """
    if not has_batch:
        return constant([0])
    sizes = op.Slice(op.Shape(table), constant([0]), constant([2]))
    return op.Reshape(op.Range(constant(0), op.ReduceProd(sizes, keepdims=0), constant(1)), sizes)


@fusion(each=[(False,), (True,)], opset=11, seen_in="models/lora/torchscript")
def rotary(x, angles, half, start, end, factor, other, a: Attribute, b: Attribute, has_batch):
    """Rotary embedding of the halves of heads, by angles of the batch or of each sequence, becomes
    RotaryEmbedding.
    """
    both = op.Concat(angles, angles, axis=a)
    # cosines and sines of both halves, with an axis for the heads; the tables of the op have the
    # shape [positions, half size]
    found = []
    tables = []
    for function, scale in ((op.Cos, factor), (op.Sin, other)):
        scaled = any_of(op.Mul(function(both), scale), function(both))
        found.append(any_of(op("Unsqueeze")(scaled, optional(anything)), scaled))
        table = any_of(op.Mul(function(angles), scale), function(angles))
        tables.append(op.Reshape(table, constant((-1, angles.shape[-1]))))
    upper = op.Slice(x, half, end, anything, optional(1))
    lower = op.Slice(x, start, anything, anything, optional(1))
    turned = op.Concat(op.Neg(upper), lower, axis=b)
    cosines, sines = found
    after = ms.RotaryEmbedding(x, _positions(angles, has_batch), *tables)
    # angles depend on the position, not on the head
    shape = (x.shape[0] if has_batch else 1, 1, x.shape[2], x.shape[3])
    return op.Add(op.Mul(x, cosines), op.Mul(turned, sines)) >> after, where(
        x.dtype == FLOAT,
        x.rank == 4,
        # the slices are the halves of the last axis: together they have its size
        start.number == 0,
        2 * half.number == x.shape[3],
        end.number >= x.shape[3],
        b.is_in(-1, 3),
        turned.same_shape(x),
        (a == -1) | (a == angles.rank - 1),
        *(scale.is_omitted | scale.shape.is_in((), (1,)) for scale in (factor, other)),
        cosines.shape == shape,
        sines.shape == shape,
        # positions have the first two sizes of the angles
        *([angles.rank == 3] if has_batch else []),
    )


@fusion(seen_in="models/lora/torchscript")
def rotary_of_rows(x, sizes, *rest):
    """RotaryEmbedding between two Transposes of heads needs neither: it reads heads in place."""
    rotated = ms.RotaryEmbedding(op.Transpose(x, perm=TURN), *rest)
    before = op.Reshape(op.Transpose(rotated, perm=TURN), sizes)
    # [batch, length, heads * size]
    return before >> ms.RotaryEmbedding(op.Reshape(x, sizes), *rest, num_heads=x.shape[2]), where(
        result.shape == (*x.shape[:2], x.sizes_of((2, 3)).product)
    )


# Elements 0 and 1 of a head are rotated by one angle, 2 and 3 by the next, as in GPT-J. Cosines and
# sines are computed once for each pair and repeated for both.
@fusion(each=[(False,), (True,)], opset=11, seen_in="torch/gptj")
def interleaved_rotary(x, cosines, sines, first, second, axis: Attribute, has_batch):
    """Rotary embedding of neighbouring elements, by angles of the batch or of each sequence,
    becomes RotaryEmbedding.
    """
    even = op.Slice(x, first, anything, anything, 2)
    odd = op.Slice(x, second, anything, anything, 2)
    axes = optional(anything)
    pairs = op.Concat(op("Unsqueeze")(op.Neg(odd), axes), op("Unsqueeze")(even, axes), axis=axis)
    turned = op.Reshape(pairs, anything)
    # each of them twice
    repeated_cosines = op.any_of("Tile", "Expand")(cosines, anything)
    repeated_sines = op.any_of("Tile", "Expand")(sines, anything)
    all_cosines = op.Reshape(repeated_cosines, anything)
    all_sines = op.Reshape(repeated_sines, anything)
    rows = op.Reshape(x, constant((0, 0, x.shape[2] * x.shape[3])))
    # [positions, half size]
    tables = (op.Reshape(each, constant((-1, each.shape[3]))) for each in (cosines, sines))
    rotated = ms.RotaryEmbedding(
        rows, _positions(cosines, has_batch), *tables, interleaved=1, num_heads=x.shape[2]
    )
    after = op.Reshape(rotated, constant((0, 0, x.shape[2], x.shape[3])))
    # one number for each pair of a position, the same for all heads
    shape = (x.shape[0] if has_batch else 1, x.shape[1], 1, x.shape[3] // 2, 1)
    return op.Add(op.Mul(x, all_cosines), op.Mul(turned, all_sines)) >> after, where(
        x.dtype == FLOAT,
        x.rank == 4,
        # every other element of the last axis, from the first one and from the second
        first.number == 0,
        second.number == 1,
        # the pairs are on a separate last axis, and then in their places again
        axis.is_in(-1, 4),
        pairs.shape == (*x.shape[:3], x.shape[3] // 2, 2),
        turned.shape == x.shape,
        cosines.shape == shape,
        sines.shape == shape,
        *(each.shape == (*cosines.shape[:4], 2) for each in (repeated_cosines, repeated_sines)),
        *(each.shape == (*cosines.shape[:2], 1, x.shape[3]) for each in (all_cosines, all_sines)),
    )
