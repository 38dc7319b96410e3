"""Parts that are taken: slices of slices, and sizes out of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rewrite import (
    computed,
    constant,
    constants,
    filled,
    ints_of,
    op,
    optional,
    rule,
    values,
)
from onnxfold.rewrite.match import Match

x = values("x")
c, d, starts, ends, axes, steps = constants("c d starts ends axes steps")
starts2, ends2, axes2, steps2 = constants("starts2 ends2 axes2 steps2")

# -------------------------------------------------------------------- slices


def _bounds(match: Match, given: Sequence[Any]) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step by axis; None if one is not known."""
    lists = []
    for variable in given:
        value = match[variable]
        array = None if value is None else match.array(value)
        if value is not None and array is None:
            return None
        lists.append(None if array is None else [int(v) for v in array.ravel()])
    first, last, along, by = lists
    if first is None or last is None:
        return None
    along = list(range(len(first))) if along is None else along
    by = [1] * len(first) if by is None else by
    rank = match.rank(x)
    if rank is None and any(axis < 0 for axis in along):
        return None
    along = [axis + (rank or 0) if axis < 0 else axis for axis in along]
    return dict(zip(along, zip(first, last, by, strict=True), strict=True))


_END = 1 << 62
_BEHIND = (1 << 63) - 1
"""A place behind the last element of any axis, and a step beyond it."""
_ANY_END = ((1 << 31) - 1, (1 << 63) - 1)
_Bound = tuple[int, int, int]


def slice_of_slice_bounds(size: int | None, one: _Bound, other: _Bound) -> _Bound | None:
    """Start, end and step that do what two slices of an axis do; None if it cannot be told."""
    if any(step < 0 and end in _ANY_END for _, end, step in (one, other)):
        return None  # onnxruntime goes to the first element, ONNX nowhere
    if size is not None:
        taken = _elements(_elements(range(size), one), other)
        if not len(taken):
            return 0, 0, 1
        end = taken.stop if taken.step > 0 or taken.stop >= 0 else -_END
        return taken.start, end, taken.step
    (start, end, step), (start2, end2, step2) = one, other
    if min(start, step, start2, step2) < 0 or (end < 0 and end2 < 2**31 - 1) or end2 < 0:
        return None
    stop = end if end2 >= 2**31 - 1 else min(end, start + end2 * step)
    first, by = start + start2 * step, step * step2
    return min(first, _BEHIND), min(stop, _BEHIND), min(by, _BEHIND)


def _elements(line: range, bound: _Bound) -> range:
    start, end, step = bound
    size = len(line)
    if not size:
        return line
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return line[min(max(start, 0), size) : min(max(end, 0), size) : step]
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return line[start : end if end >= 0 else None : step]


_slices = ((starts, ends, axes, steps), (starts2, ends2, axes2, steps2))


def _merged(match: Match) -> list[tuple[int, ...]] | None:
    inner, outer = (_bounds(match, given) for given in _slices)
    shape = match.shape(x)
    if inner is None or outer is None:
        return None
    merged = dict(inner)
    for axis, bound in outer.items():
        if axis not in inner:
            merged[axis] = bound
            continue
        size = None if shape is None else shape[axis]
        both = slice_of_slice_bounds(size if isinstance(size, int) else None, inner[axis], bound)
        if both is None:
            return None
        merged[axis] = both
    return [tuple(merged), *zip(*merged.values(), strict=True)]


def _part(k: int) -> Any:
    def part(match: Match) -> Any:
        merged = _merged(match)
        return None if merged is None else merged[k]

    return constant(computed(part))


_sliced = op.Slice(x, starts, ends, optional(axes), optional(steps))


def _goes(match: Match) -> bool:
    """The inner slice has no users that stay: all of them are slices like this one."""
    inner = match[_sliced]
    return not inner.is_graph_output() and all(
        use.node.op_type == "Slice"
        and use.idx == 0
        and all(v is None or match.facts.known.is_constant(v) for v in use.node.inputs[1:])
        for use in inner.uses()
    )


slice_of_slice = rule(
    op.Slice(_sliced, starts2, ends2, optional(axes2), optional(steps2))
    >> op.Slice(x, _part(1), _part(2), _part(0), _part(3)),
    where=_goes,
    shared=True,
    doc="Two slices with constant bounds are one, if it takes exactly what they take.",
)

# -------------------------------------------------------------------- parts of shapes

_shape = op.Shape(x)


def _is_scalar_index(match: Match) -> bool:
    return match.rank(c) == 0 and match.array(c) is not None


def _one_size(match: Match) -> bool:
    array = match.array(c)
    return array is not None and array.shape == (1,)


_start, _end = ints_of(c)[0], computed(lambda m: _end_of(int(m.array(c).ravel()[0])))


def _end_of(index: int) -> int:
    # an end beyond the rank is the rank
    return 1 << 31 if index == -1 else index + 1


size_of_one_axis = (
    rule(
        op.Unsqueeze(op.Gather(_shape, c), filled(0)) >> op.Shape(x, start=_start, end=_end),
        where=_is_scalar_index,
        opset=(15, None),
        doc="The size of an axis is a part of the shape.",
    ),
    rule(
        op.Gather(_shape, c) >> op.Shape(x, start=_start, end=_end),
        where=_one_size,
        opset=(15, None),
        doc="The size of an axis is a part of the shape.",
    ),
    rule(
        op.Slice(_shape, c, d, optional(filled(0)), optional(filled(1)))
        >> op.Shape(x, start=_start, end=ints_of(d)[0]),
        opset=(15, None),
        doc="Sizes of neighbouring axes are a part of the shape.",
    ),
)
