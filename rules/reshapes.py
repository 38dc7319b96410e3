"""Changes of shape that meet: Reshape, Squeeze, Unsqueeze, Flatten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rules.shapes import RESHAPING, new_shape

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    attributes,
    axes,
    axes_from_front,
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
c, d = constants("c d")
p, q = attributes("p q")

# -------------------------------------------------------------------- changes of shape

_one, _other = op.any_of(*RESHAPING), op.any_of(*RESHAPING)
_inner = _one(x, *ys)

shape_there_and_back = rule(
    _other(_inner, *zs) >> x,
    where=same_shape(x, result),
    benefit=2,
    doc="Two changes of shape, the second undoes the first.",
)

_squeeze, _unsqueeze = op("Squeeze"), op("Unsqueeze")

squeeze_of_unsqueeze = rule(
    _squeeze(_unsqueeze(x, *ys), *zs) >> x,
    where=axes(_squeeze) == axes(_unsqueeze),
    benefit=1,
    doc="The axes that are added are taken away again.",
)

unsqueeze_of_squeeze = rule(
    _unsqueeze(_squeeze(x, *ys), *zs) >> x,
    where=axes(_squeeze) == axes(_unsqueeze),
    benefit=1,
    doc="The axes that are taken away are added again.",
)


@given
def added_axes(first: Sequence[int], second: Sequence[int], x: Matched) -> tuple[int, ...]:
    """The axes that two Unsqueezes add, as axes of the last result."""
    rank = x.rank_if_known
    one = axes_from_front(first, None if rank is None else rank + len(first))
    other = axes_from_front(second, None if rank is None else rank + len(first) + len(second))
    return _both(other, one)


@given
def removed_axes(first: Sequence[int], second: Sequence[int], x: Matched) -> tuple[int, ...] | None:
    """The axes that two Squeezes remove, as axes of their operand; to name none means all."""
    if not first or not second:
        return None
    rank = x.rank_if_known
    one = axes_from_front(first, rank)
    other = axes_from_front(second, None if rank is None else rank - len(first))
    return _both(one, other)


def _both(named: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Axes of the larger shape, and further ones counted where the former are not there."""
    room = max((*named, *others), default=0) + len(named) + 1
    free = [axis for axis in range(room) if axis not in named]
    return tuple(sorted((*named, *(free[axis] for axis in others))))


_unsqueezed, _unsqueezed_11 = op.Unsqueeze(x, c), op.Unsqueeze(x, axes=p)
_squeezed, _squeezed_11 = op.Squeeze(x, c), op.Squeeze(x, axes=p)

unsqueeze_of_unsqueeze = (
    rule(
        op.Unsqueeze(_unsqueezed, d)
        >> op.Unsqueeze(x, constant(added_axes(ints_of(c), ints_of(d)))),
        where=single_use(_unsqueezed),
        benefit=1,
        doc="Axes are added at once.",
    ),
    rule(
        op.Unsqueeze(_unsqueezed_11, axes=q) >> op.Unsqueeze(x, axes=added_axes(p, q)),
        where=single_use(_unsqueezed_11),
        opset=(1, 12),
        benefit=1,
        doc="Axes are added at once.",
    ),
)

squeeze_of_squeeze = (
    rule(
        op.Squeeze(_squeezed, d) >> op.Squeeze(x, constant(removed_axes(ints_of(c), ints_of(d)))),
        where=single_use(_squeezed),
        benefit=1,
        doc="Axes are taken away at once.",
    ),
    rule(
        op.Squeeze(_squeezed_11, axes=q) >> op.Squeeze(x, axes=removed_axes(p, q)),
        where=single_use(_squeezed_11),
        opset=(1, 12),
        benefit=1,
        doc="Axes are taken away at once.",
    ),
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
)


@given
def _no_zero(c: Matched) -> bool:
    return 0 not in c.ints


reshape_without_zeros = rule(
    op.Reshape(_inner, c) >> op.Reshape(x, c),
    where=_no_zero,
    opset=(5, None),
    doc="A Reshape whose sizes do not refer to its operand's needs no other one before it.",
)

changes_of_shape = rule(
    _other(_inner, *zs) >> op.Reshape(x, new_shape(x)),
    where=single_use(_inner),
    opset=(5, None),
    benefit=-1,
    doc="Two changes of shape are one Reshape, if a constant can say to which shape.",
)
