"""Rotary position embeddings as one op of onnxruntime's own (target "onnxruntime").

The halves of every head are turned by angles that are the same for all heads. The op reads cosines
and sines from tables by position; here the tables are what the model computes for its positions,
one half of it, as exporters compute both. float32 only, for which the CPU provider has the kernel.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    any_of,
    attributes,
    constant,
    constants,
    dtype_of,
    given,
    op,
    optional,
    rank_of,
    result,
    rule,
    shape_of,
    values,
)

x, angles, sizes, rest, ys, zs = values("x angles sizes *rest *ys *zs")
half, whole, start, end, last, first_axis = constants("half whole start end last first_axis")
factor, other, cosines, sines = constants("factor other cosines sines")
a, b = attributes("a b")

_ms = op.domain("com.microsoft")
_TURN = (0, 2, 1, 3)

# -------------------------------------------------------------------- what exporters write

_both = op.Concat(angles, angles, axis=a)


def _table(function: Any, scale: Any, axes: Any) -> Any:
    """Cosines or sines for both halves, with an axis for the heads."""
    scaled = any_of(op.Mul(function(_both), scale), function(_both))
    return any_of(op.any_of("Unsqueeze")(scaled, *axes), scaled)


_cosines, _sines = _table(op.Cos, factor, ys), _table(op.Sin, other, zs)
_upper = op.Slice(x, half, end, last, optional(1))
_lower = op.Slice(x, start, whole, first_axis, optional(1))
_turned = op.Concat(op.Neg(_upper), _lower, axis=b)
_as_it_is, _across = op.Mul(x, _cosines), op.Mul(_turned, _sines)


@given
def _are_halves(x: Matched, half: Matched, whole: Matched, start: Matched, end: Matched) -> bool:
    """The slices are the two halves of the last of four axes."""
    size = x.shape[-1]
    if x.rank != 4 or not isinstance(size, int) or size % 2:
        return False
    return start.number == 0 and 2 * half.number == 2 * whole.number == size <= end.number


@given
def _is_last(axis: Matched) -> bool:
    return axis.number in (-1, 3)


@given
def _is_scalar(scale: Matched | None = None) -> bool:
    return scale is None or scale.shape in ((), (1,))


@given
def _has_tables(product: Matched, x: Matched, batch: Any) -> bool:
    """The angles are those of a position, the same for all heads."""
    (table,) = (each for each in product.inputs if each is not None and each.value is not x.value)
    return product.shape == x.shape and table.shape == (batch, 1, *x.shape[2:])


def _rows(function: Any, scale: Any) -> Any:
    """[positions, size of a half]."""
    half = any_of(op.Mul(function(angles), scale), function(angles))
    return op.Reshape(half, constant((-1, shape_of(angles)[-1])))


def rows_of_all(table: Any) -> Any:
    """[batch, length]: the rows of tables of all sequences, one after the other."""
    sizes = op.Slice(op.Shape(table), constant([0]), constant([2]))
    return op.Reshape(op.Range(constant(0), op.ReduceProd(sizes, keepdims=0), constant(1)), sizes)


rotary = [
    rule(
        op.Add(_as_it_is, _across)
        >> _ms.RotaryEmbedding(x, positions, _rows(op.Cos, factor), _rows(op.Sin, other)),
        where=(dtype_of(x) == ir.DataType.FLOAT)
        & _are_halves
        & _is_last(last)
        & _is_last(first_axis)
        & (a.is_in(-1, rank_of(angles) - 1))
        & b.is_in(-1, 3)
        & _is_scalar(factor)
        & _is_scalar(other)
        & _has_tables(_as_it_is, x, batch)
        & _has_tables(_across, _turned, batch),
        opset=(11, None),
        inexact=True,
        target="onnxruntime",
        doc="The halves of every head, turned by angles that " + which,
        seen_in="models/lora/torchscript",
    )
    for positions, batch, which in (
        (constant([0]), 1, "are the same for a whole batch."),
        (rows_of_all(angles), shape_of(x)[0], "each sequence has its own of."),
    )
]

# -------------------------------------------------------------------- heads as they come


@given
def _joined(x: Matched) -> Shape | None:
    """[batch, length, heads * size] of [batch, length, heads, size]."""
    batch, length, heads, size = x.shape
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    return (batch, length, heads * size)


_rotated = _ms.RotaryEmbedding(op.Transpose(x, perm=_TURN), *rest)

rotary_of_rows = rule(
    op.Reshape(op.Transpose(_rotated, perm=_TURN), sizes)
    >> _ms.RotaryEmbedding(op.Reshape(x, sizes), *rest, num_heads=shape_of(x)[2]),
    where=shape_of(result) == _joined(x),
    inexact=True,
    target="onnxruntime",
    doc="The heads need not be brought to the front to be rotated.",
    seen_in="models/lora/torchscript",
)
