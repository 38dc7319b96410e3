"""Rotary position embeddings of neighbours as one op of onnxruntime's own (target "onnxruntime").

Elements 0 and 1 of a head are turned by one angle, 2 and 3 by the next, as GPT-J does it. Cosines
and sines are computed once for each pair and repeated for both. float32 only, as for halves.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxfold.rules.rotary import rows_of_all

from onnxfold.rewrite import (
    Matched,
    attributes,
    constant,
    constants,
    dtype_of,
    given,
    op,
    rule,
    shape_of,
    values,
)

x, cosines, sines, sizes = values("x cosines sines sizes")
first, second, end, last, other_end, other_last = constants(
    "first second end last other_end other_last"
)
once, again, ys, zs = values("once again *ys *zs")
joined, joined_too = values("joined joined_too")
axis = attributes("axis")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- what exporters write

_even = op.Slice(x, first, end, last, 2)
_odd = op.Slice(x, second, other_end, other_last, 2)
_pairs = op.Concat(
    op.any_of("Unsqueeze")(op.Neg(_odd), *ys), op.any_of("Unsqueeze")(_even, *zs), axis=axis
)
_turned = op.Reshape(_pairs, sizes)
_repeat, _repeat_too = op.any_of("Tile", "Expand"), op.any_of("Tile", "Expand")
_repeated, _repeated_too = _repeat(cosines, once), _repeat_too(sines, again)
_cosines, _sines = op.Reshape(_repeated, joined), op.Reshape(_repeated_too, joined_too)


@given
def _are_neighbours(x: Matched, first: Matched, second: Matched) -> bool:
    """Every other element of the last of four axes, from the first one and from the second."""
    size = x.shape[-1]
    return (
        x.rank == 4
        and all(isinstance(number, int) for number in x.shape[2:])
        and size % 2 == 0
        and (first.number, second.number) == (0, 1)
    )


@given
def _is_to_the_end(end: Matched, last: Matched, x: Matched) -> bool:
    return last.number in (-1, 3) and bool(end.number >= x.shape[-1])


@given
def _are_side_by_side(pairs: Matched, turned: Matched, x: Matched) -> bool:
    """The pairs are on an axis of their own, the last one, and then as they were."""
    *others, size = x.shape
    return pairs.shape == (*others, size // 2, 2) and turned.shape == x.shape


@given
def _is_table(half: Matched, repeated: Matched, whole: Matched, x: Matched, batch: Any) -> bool:
    """A number for each pair of a position, the same for all heads."""
    _, length, _, size = x.shape
    return (
        half.shape == (batch, length, 1, size // 2, 1)
        and repeated.shape == (batch, length, 1, size // 2, 2)
        and whole.shape == (batch, length, 1, size)
    )


_heads, _size = shape_of(x)[2], shape_of(x)[3]


def _rows(table: Any) -> Any:
    """[positions, size of a half]."""
    return op.Reshape(table, constant((-1, shape_of(table)[3])))


interleaved_rotary = [
    rule(
        op.Add(op.Mul(x, _cosines), op.Mul(_turned, _sines))
        >> op.Reshape(
            _ms.RotaryEmbedding(
                op.Reshape(x, constant((0, 0, _heads * _size))),
                positions,
                _rows(cosines),
                _rows(sines),
                interleaved=1,
                num_heads=_heads,
            ),
            constant((0, 0, _heads, _size)),
        ),
        where=(dtype_of(x) == ir.DataType.FLOAT)
        & _are_neighbours
        & _is_to_the_end
        & _is_to_the_end(other_end, other_last)
        & axis.is_in(-1, 4)
        & _are_side_by_side(_pairs, _turned)
        & _is_table(cosines, _repeated, _cosines, x, batch)
        & _is_table(sines, _repeated_too, _sines, x, batch),
        opset=(11, None),
        inexact=True,
        target="onnxruntime",
        doc="Neighbours in every head, turned by angles that " + which,
        seen_in="torch/gptj",
    )
    for positions, batch, which in (
        (constant([0]), 1, "are the same for a whole batch."),
        (rows_of_all(cosines), shape_of(x)[0], "each sequence has its own of."),
    )
]
