"""Parts that are taken: slices of slices, and sizes out of shapes."""

from __future__ import annotations

from onnxfold.rewrite import (
    Matched,
    attributes,
    constant,
    constants,
    filled,
    given,
    ints_of,
    is_scalar,
    known,
    op,
    optional,
    rule,
    shape_of,
    values,
)

x, ys = values("x *ys")
a, b, p = attributes("a b p")
c, d, starts, ends, axes, steps = constants("c d starts ends axes steps")
starts2, ends2, axes2, steps2 = constants("starts2 ends2 axes2 steps2")

# -------------------------------------------------------------------- slices


_Bound = tuple[int, int, int]
"""Start, end and step."""


@given
def _bounds(
    x: Matched,
    starts: Matched,
    ends: Matched,
    axes: Matched | None = None,
    steps: Matched | None = None,
) -> dict[int, _Bound]:
    """Start, end and step by axis."""
    first, last = starts.ints, ends.ints
    named = range(len(first)) if axes is None else axes.ints
    by = [1] * len(first) if steps is None else steps.ints
    if any(axis < 0 for axis in named):
        named = [axis + x.rank if axis < 0 else axis for axis in named]
    return dict(zip(named, zip(first, last, by, strict=True), strict=True))


_END = 1 << 62
_BEHIND = (1 << 63) - 1
"""A place behind the last element of any axis, and a step beyond it."""
_ANY_END = ((1 << 31) - 1, (1 << 63) - 1)


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


@given
def _merged(
    x: Matched, inner: dict[int, _Bound], outer: dict[int, _Bound]
) -> list[tuple[int, ...]] | None:
    """Starts, ends, axes and steps of a slice that does what two do."""
    merged = dict(inner)
    for axis, bound in outer.items():
        if axis not in inner:
            merged[axis] = bound
            continue
        both = slice_of_slice_bounds(x.extent(axis), inner[axis], bound)
        if both is None:
            return None
        merged[axis] = both
    starts, ends, steps = zip(*merged.values(), strict=True)
    return [starts, ends, tuple(merged), steps]


_sliced = op.Slice(x, starts, ends, optional(axes), optional(steps))


@given
def _goes(inner: Matched) -> bool:
    """The slice has no users that stay: all of them are slices with constant bounds."""
    return not inner.value.is_graph_output() and all(
        use.node.op_type == "Slice"
        and use.idx == 0
        and all(v is None or inner.facts.known.is_constant(v) for v in use.node.inputs[1:])
        for use in inner.value.uses()
    )


_both = _merged(x, _bounds, _bounds(x, starts2, ends2, axes2, steps2))

slice_of_slice = rule(
    op.Slice(_sliced, starts2, ends2, optional(axes2), optional(steps2))
    >> op.Slice(x, *(constant(_both[k]) for k in range(4))),
    where=_goes(_sliced),
    shared=True,
    doc="Two slices with constant bounds are one, if it takes exactly what they take.",
    seen_in="silero-vad/silero_vad_16k_sequence",
)

# -------------------------------------------------------------------- parts of shapes

_shape = op.Shape(x)


@given
def _end(c: Matched) -> int:
    """The end of a part of a shape that is one size; one beyond the rank is the rank."""
    index = int(c.number)
    return 1 << 31 if index == -1 else index + 1


size_of_one_axis = (
    rule(
        op.Unsqueeze(op.Gather(_shape, c), filled(0)) >> op.Shape(x, start=ints_of(c)[0], end=_end),
        where=is_scalar(c),
        opset=(15, None),
        doc="The size of an axis is a part of the shape.",
        seen_in="pmsh-ocr/decoder_loop",
    ),
    rule(
        op.Gather(_shape, c) >> op.Shape(x, start=ints_of(c)[0], end=_end),
        where=shape_of(c) == (1,),
        opset=(15, None),
        doc="The size of an axis is a part of the shape.",
        seen_in="silero-vad/silero_vad_16k_op15",
    ),
    rule(
        op.Slice(_shape, c, d, optional(filled(0)), optional(filled(1)))
        >> op.Shape(x, start=ints_of(c)[0], end=ints_of(d)[0]),
        opset=(15, None),
        doc="Sizes of neighbouring axes are a part of the shape.",
        seen_in="pmsh-ocr/decoder_loop",
    ),
)


@given
def _is_one(first: int, end: int) -> bool:
    return 0 <= first == end - 1


@given
def _at(p: tuple[int, ...], a: int) -> int | None:
    """The axis that a transpose takes to this place."""
    return p[a] if a < len(p) else None


@given
def _kept(x: Matched, reshaped: Matched, a: int) -> bool:
    """Both have the same size at an axis."""
    return max(a, 0) < min(x.rank, reshaped.rank) and x.shape[a] == reshaped.shape[a]


_reshaped = op("Reshape")

size_of_transposed = rule(
    op.Shape(op.Transpose(x, perm=p), start=a, end=b) >> op.Shape(x, start=_at, end=_at + 1),
    where=_is_one(a, b) & known(_at),
    opset=(15, None),
    doc="The size of an axis is the same before a transpose.",
    seen_in="pmsh-ocr/decoder_loop",
)

size_of_reshaped = rule(
    op.Shape(_reshaped(x, *ys), start=a, end=b) >> op.Shape(x, start=a, end=b),
    where=_is_one(a, b) & _kept(x, _reshaped, a),
    opset=(15, None),
    doc="The size of an axis is the same before a Reshape that keeps it.",
    seen_in="pmsh-ocr/decoder_loop",
)
