"""Fuse rotary position embeddings into one op of onnxruntime (target "onnxruntime").

The halves (x, y) of each head are rotated by angles t that are the same for all heads: (x * cos(t)
- y * sin(t), y * cos(t) + x * sin(t)). The op reads cosines and sines from tables by position. The
rules use the cosines and sines that the model computes as tables. Exporters compute them for both
halves, and the rules use those of one half. In the interleaved layout, adjacent elements are
rotated instead of halves. The rules are for float32 only, for which the CPU provider has the
kernel.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rules.onnxruntime_target import SWAP_HEADS, fusion, ms

from onnxfold.rewrite import *


def _positions(table: Value, has_batch: bool) -> Any:
    """Return the indices of the rows of the tables, with shape [batch, length].

    If all sequences of the batch have the same angles, return only the index of the first row, [0].
    """
    if not has_batch:
        return constant([0])
    sizes = op.Slice(op.Shape(table), constant([0]), constant([2]))
    return op.Reshape(op.Range(constant(0), op.ReduceProd(sizes, keepdims=0), constant(1)), sizes)


@fusion(each=[(False,), (True,)], opset=11, seen_in="models/lora/torchscript")
def rotary(
    x, angles, half, start, end, cosine_factor, sine_factor, a: Attribute, b: Attribute, has_batch
):
    """x * cos(t) + Concat(-upper(x), lower(x)) * sin(t) == RotaryEmbedding(x, cos(t), sin(t)), with
    the same angles for the batch, or different angles for each sequence.
    """
    both = op.Concat(angles, angles, axis=a)
    # The cosines and sines are those of both halves, with an axis for the heads. The tables of the
    # op have the shape [positions, half size].
    factors = []
    tables = []
    for function, scale in ((op.Cos, cosine_factor), (op.Sin, sine_factor)):
        scaled = any_of(op.Mul(function(both), scale), function(both))
        factors.append(any_of(op("Unsqueeze")(scaled, optional(anything)), scaled))
        table = any_of(op.Mul(function(angles), scale), function(angles))
        tables.append(op.Reshape(table, constant((-1, angles.shape[-1]))))
    upper = op.Slice(x, half, end, anything, optional(1))
    lower = op.Slice(x, start, anything, anything, optional(1))
    rotated = op.Concat(op.Neg(upper), lower, axis=b)
    cosines, sines = factors
    after = ms.RotaryEmbedding(x, _positions(angles, has_batch), *tables)
    # angles depend on the position, not on the head
    shape = (x.shape[0] if has_batch else 1, 1, x.shape[2], x.shape[3])
    return op.Add(op.Mul(x, cosines), op.Mul(rotated, sines)) >> after, where(
        x.dtype == FLOAT,
        x.rank == 4,
        # the slices are the halves of the last axis: together they have its size
        start.number == 0,
        2 * half.number == x.shape[3],
        end.number >= x.shape[3],
        b.is_in(-1, 3),
        rotated.same_shape(x),
        (a == -1) | (a == angles.rank - 1),
        *(scale.is_omitted | scale.shape.is_in((), (1,)) for scale in (cosine_factor, sine_factor)),
        cosines.shape == shape,
        sines.shape == shape,
        # the positions have the first two sizes of the angles
        *([angles.rank == 3] if has_batch else []),
    )


@fusion(seen_in="models/lora/torchscript")
def rotary_of_rows(x, sizes, *positions_and_tables):
    """Reshape(Transpose(RotaryEmbedding(Transpose(x)))) == RotaryEmbedding(Reshape(x),
    num_heads=n).
    """
    rotated = ms.RotaryEmbedding(op.Transpose(x, perm=SWAP_HEADS), *positions_and_tables)
    before = op.Reshape(op.Transpose(rotated, perm=SWAP_HEADS), sizes)
    rows = op.Reshape(x, sizes)
    after = ms.RotaryEmbedding(rows, *positions_and_tables, num_heads=x.shape[2])
    # [batch, length, heads * size]
    return before >> after, where(result.shape == (*x.shape[:2], x.sizes_of((2, 3)).product))


# As in GPT-J, elements 0 and 1 of a head are rotated by one angle, elements 2 and 3 by the next,
# and so on. Exporters compute cosines and sines once for each pair, and repeat them for both
# elements.
@fusion(each=[(False,), (True,)], opset=11, seen_in="torch/gptj")
def interleaved_rotary(x, cosines, sines, first, second, axis: Attribute, has_batch):
    """x * cos(t) + r(x) * sin(t) == RotaryEmbedding(x, cos(t), sin(t), interleaved=1), where r
    turns the pairs (a, b) of x into (-b, a), with the same angles for the batch, or different
    angles for each sequence.
    """
    even = op.Slice(x, first, anything, anything, 2)
    odd = op.Slice(x, second, anything, anything, 2)
    axes = optional(anything)
    pairs = op.Concat(op("Unsqueeze")(op.Neg(odd), axes), op("Unsqueeze")(even, axes), axis=axis)
    swapped = op.Reshape(pairs, anything)
    # each cosine and sine twice
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
    return op.Add(op.Mul(x, all_cosines), op.Mul(swapped, all_sines)) >> after, where(
        x.dtype == FLOAT,
        x.rank == 4,
        # every other element of the last axis, from the first one and from the second
        first.number == 0,
        second.number == 1,
        # the pairs are on a separate last axis, and then at their indices again
        axis.is_in(-1, 4),
        pairs.shape == (*x.shape[:3], x.shape[3] // 2, 2),
        swapped.shape == x.shape,
        cosines.shape == shape,
        sines.shape == shape,
        *(each.shape == (*cosines.shape[:4], 2) for each in (repeated_cosines, repeated_sines)),
        *(each.shape == (*cosines.shape[:2], 1, x.shape[3]) for each in (all_cosines, all_sines)),
    )
