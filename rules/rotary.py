"""Rotary position embeddings as one op of onnxruntime's own (target "onnxruntime").

The halves of every head are turned by angles that are the same for all heads. The op reads cosines
and sines from tables by position; here the tables are what the model computes for its positions,
one half of it, as exporters compute both. float32 only, for which the CPU provider has the kernel.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite import (
    any_of,
    attributes,
    constant,
    constants,
    op,
    optional,
    rule,
    values,
)

x, angles, sizes, rest, ys, zs = values("x angles sizes *rest *ys *zs")
half, whole, start, end, last, first_axis = constants("half whole start end last first_axis")
first, second, other_end, other_last = constants("first second other_end other_last")
cosines, sines, once, again, joined, joined_too = values(
    "cosines sines once again joined joined_too"
)
factor, other = constants("factor other")
a, b, axis = attributes("a b axis")

_ms = op.domain("com.microsoft")
_TURN = (0, 2, 1, 3)

# -------------------------------------------------------------------- what exporters write

_both = op.Concat(angles, angles, axis=a)
# cosines and sines for both halves, with an axis for the heads
_cosines, _sines = (
    any_of(op.any_of("Unsqueeze")(scaled, *axes), scaled)
    for function, scale, axes in ((op.Cos, factor, ys), (op.Sin, other, zs))
    for scaled in (any_of(op.Mul(function(_both), scale), function(_both)),)
)
_upper = op.Slice(x, half, end, last, optional(1))
_lower = op.Slice(x, start, whole, first_axis, optional(1))
_turned = op.Concat(op.Neg(_upper), _lower, axis=b).named("turned")

# the tables of the op: [positions, size of a half]
_tables = [
    op.Reshape(
        any_of(op.Mul(function(angles), scale), function(angles)),
        constant(lambda angles: (-1, angles.shape[-1])),
    )
    for function, scale in ((op.Cos, factor), (op.Sin, other))
]


def positions_of(table: Any) -> Any:
    """In a replacement: [batch, length], the rows of the tables of all sequences, one by one."""
    sizes = op.Slice(op.Shape(table), constant([0]), constant([2]))
    return op.Reshape(op.Range(constant(0), op.ReduceProd(sizes, keepdims=0), constant(1)), sizes)


rotary = [
    rule(
        op.Add(op.Mul(x, _cosines).named("plain"), op.Mul(_turned, _sines).named("across"))
        >> _ms.RotaryEmbedding(x, positions, *_tables),
        where=[
            lambda x: x.dtype == ir.DataType.FLOAT and x.rank == 4 and x.sizes_of([3])[0] % 2 == 0,
            # the slices are the halves of the last axis
            lambda x, start, half, whole, end: (
                start.number == 0
                and 2 * half.number == 2 * whole.number == x.shape[3] <= end.number
            ),
            lambda last, first_axis, a, b, angles: (
                {int(last.number), int(first_axis.number), b} <= {-1, 3}
                and a in (-1, angles.rank - 1)
            ),
            lambda factor=None, other=None: all(
                scale is None or scale.shape in ((), (1,)) for scale in (factor, other)
            ),
            # the angles are those of a position, the same for all heads
            lambda x, turned, plain, across, has_batch=has_batch: all(
                product.shape == x.shape
                and all(
                    table in (x, turned)
                    or table.shape == (x.shape[0] if has_batch else 1, 1, *x.shape[2:])
                    for table in product.inputs
                )
                for product in (plain, across)
            ),
        ],
        opset=(11, None),
        inexact=True,
        target="onnxruntime",
        doc="Rotary embedding of the halves of heads becomes RotaryEmbedding; " + which,
        seen_in="models/lora/torchscript",
    )
    for positions, has_batch, which in (
        (constant([0]), False, "the angles are the same for a whole batch."),
        (positions_of(angles), True, "each sequence has its own angles."),
    )
]

# -------------------------------------------------------------------- heads as they come

_rotated = _ms.RotaryEmbedding(op.Transpose(x, perm=_TURN), *rest)

rotary_of_rows = rule(
    op.Reshape(op.Transpose(_rotated, perm=_TURN), sizes)
    >> _ms.RotaryEmbedding(op.Reshape(x, sizes), *rest, num_heads=lambda x: x.shape[2]),
    # [batch, length, heads * size]
    where=lambda x, result: result.shape == (*x.shape[:2], math.prod(x.sizes_of((2, 3)))),
    inexact=True,
    target="onnxruntime",
    doc="RotaryEmbedding between two Transposes of the heads needs neither: it reads heads in"
    " place.",
    seen_in="models/lora/torchscript",
)

# -------------------------------------------------------------------- neighbours

# Elements 0 and 1 of a head are turned by one angle, 2 and 3 by the next, as GPT-J does it. Cosines
# and sines are computed once for each pair and repeated for both.
_even = op.Slice(x, first, end, last, 2)
_odd = op.Slice(x, second, other_end, other_last, 2)
_pairs = op.Concat(
    op.any_of("Unsqueeze")(op.Neg(_odd), *ys), op.any_of("Unsqueeze")(_even, *zs), axis=axis
).named("pairs")
_turned_pairs = op.Reshape(_pairs, sizes).named("turned")
# each of them twice
_all_cosines, _all_sines = (
    op.Reshape(
        op.any_of("Tile", "Expand")(table, repeats).named(f"repeated_{table.name}"), all_sizes
    ).named(f"all_{table.name}")
    for table, repeats, all_sizes in ((cosines, once, joined), (sines, again, joined_too))
)

interleaved_rotary = [
    rule(
        op.Add(
            op.Mul(x, _all_cosines),
            op.Mul(_turned_pairs, _all_sines),
        )
        >> op.Reshape(
            _ms.RotaryEmbedding(
                op.Reshape(x, constant(lambda x: (0, 0, x.shape[2] * x.shape[3]))),
                positions,
                # [positions, size of a half]
                op.Reshape(cosines, constant(lambda cosines: (-1, cosines.shape[3]))),
                op.Reshape(sines, constant(lambda sines: (-1, sines.shape[3]))),
                interleaved=1,
                num_heads=lambda x: x.shape[2],
            ),
            constant(lambda x: (0, 0, *x.shape[2:])),
        ),
        where=[
            lambda x: (
                x.dtype == ir.DataType.FLOAT and x.rank == 4 and x.sizes_of([2, 3])[1] % 2 == 0
            ),
            # every other element of the last axis, from the first one and from the second
            lambda x, first, end, last, second, other_end, other_last: (
                (first.number, second.number) == (0, 1)
                and {int(last.number), int(other_last.number)} <= {-1, 3}
                and min(end.number, other_end.number) >= x.shape[3]
            ),
            # the pairs are on an axis of their own, the last one, and then as they were
            lambda x, axis, pairs, turned: (
                axis in (-1, 4)
                and pairs.shape == (*x.shape[:3], x.shape[3] // 2, 2)
                and turned.shape == x.shape
            ),
            # there is a number for each pair of a position, the same for all heads
            lambda x, cosines, sines, has_batch=has_batch: (
                cosines.shape
                == sines.shape
                == (x.shape[0] if has_batch else 1, x.shape[1], 1, x.shape[3] // 2, 1)
            ),
            lambda cosines, sines, repeated_cosines, repeated_sines: (
                repeated_cosines.shape == repeated_sines.shape == (*cosines.shape[:4], 2)
            ),
            lambda x, cosines, all_cosines, all_sines: (
                all_cosines.shape == all_sines.shape == (*cosines.shape[:2], 1, x.shape[3])
            ),
        ],
        opset=(11, None),
        inexact=True,
        target="onnxruntime",
        doc="Rotary embedding of neighbouring elements becomes RotaryEmbedding; " + which,
        seen_in="torch/gptj",
    )
    for positions, has_batch, which in (
        (constant([0]), False, "the angles are the same for a whole batch."),
        (positions_of(cosines), True, "each sequence has its own angles."),
    )
]
