"""Parts that are taken: slices of slices, and sizes out of shapes."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rewrite import (
    Matched,
    any_of,
    attributes,
    constant,
    constants,
    filled,
    op,
    optional,
    rule,
    values,
)

x, ys = values("x *ys")
a, b, p = attributes("a b p")
c, d, starts, ends, axes, steps = constants("c d starts ends axes steps")
starts2, ends2, axes2, steps2 = constants("starts2 ends2 axes2 steps2")

# -------------------------------------------------------------------- slices

_TO_THE_END = 2**31 - 1
_MOST = 2**63 - 1
"""A place behind the last element of any axis, and a step beyond it."""


def _bounds(taken: Matched) -> dict[int, tuple[int, int, int]]:
    """Return start, end and step by axis of a Slice with constant bounds."""
    x, *bounds = taken.inputs
    first, last, named, by = (bound and bound.ints for bound in (*bounds, None, None)[:4])
    named = range(len(first)) if named is None else named
    if any(axis < 0 for axis in named):
        named = [axis + x.rank if axis < 0 else axis for axis in named]
    return dict(zip(named, zip(first, last, by or [1] * len(first), strict=True), strict=True))


def _merged(x: Matched, sliced: Matched, result: Matched) -> Sequence[Sequence[int]] | None:
    """Return starts, ends, axes and steps that do what two slices do; None if it cannot be told.

    Slices that go backwards stay: ONNX and onnxruntime do not agree on where some of them end.
    """
    both = _bounds(sliced)
    for axis, (start2, end2, step2) in _bounds(result).items():
        start, end, step = both.get(axis, (0, _MOST, 1))
        size = x.extent(axis)
        if axis not in both:
            both[axis] = start2, end2, step2
        elif min(step, step2) < 0:
            return None
        elif size is not None:
            taken = range(size)[start:end:step][start2:end2:step2]
            both[axis] = (taken.start, taken.stop, min(taken.step, _MOST)) if taken else (0, 0, 1)
        elif min(start, start2, end2) < 0 or (end < 0 and end2 < _TO_THE_END):
            return None
        else:
            stop = end if end2 >= _TO_THE_END else min(end, start + end2 * step)
            both[axis] = min(start + start2 * step, _MOST), stop, min(step * step2, _MOST)
    first, last, by = zip(*both.values(), strict=True)
    return first, last, tuple(both), by


_sliced = op.Slice(x, starts, ends, optional(axes), optional(steps)).named("sliced")

slice_of_slice = rule(
    op.Slice(_sliced, starts2, ends2, optional(axes2), optional(steps2))
    >> op.Slice(
        x,
        *(constant(lambda x, sliced, result, k=k: _merged(x, sliced, result)[k]) for k in range(4)),
    ),
    where=[
        # it goes: all that reads it are slices with constant bounds
        lambda sliced: (
            not sliced.is_graph_output
            and all(
                user.op_type == "Slice"
                and user.inputs[0] == sliced
                and all(bound is None or bound.is_constant for bound in user.inputs[1:])
                for user in sliced.users
            )
        ),
        _merged,
    ],
    shared=True,
    doc="Slice of a Slice with constant bounds is one Slice that takes the same elements.",
    seen_in="silero-vad/silero_vad_16k_sequence",
)

# -------------------------------------------------------------------- parts of shapes

_shape = op.Shape(x)
# the last size, -1, has no end
_part = {"start": lambda c: c.ints[0], "end": lambda c: c.ints[0] + 1 or 1 << 31}

size_of_one_axis = (
    rule(
        any_of(op.Unsqueeze(op.Gather(_shape, c), filled(0)), op.Gather(_shape, c))
        >> op.Shape(x, **_part),
        where=lambda c, result: c.has_one_element and result.rank == 1,
        opset=(15, None),
        doc="Gather of one size from Shape(x), as a list, is Shape(x) with start and end.",
        seen_in="pmsh-ocr/decoder_loop",
    ),
    rule(
        op.Slice(_shape, c, d, optional(filled(0)), optional(filled(1)))
        >> op.Shape(x, start=lambda c: c.ints[0], end=lambda d: d.ints[0]),
        opset=(15, None),
        doc="Slice of Shape(x) is Shape(x) with start and end.",
        seen_in="pmsh-ocr/decoder_loop",
    ),
)

size_of_transposed = rule(
    op.Shape(op.Transpose(x, perm=p), start=a, end=b)
    >> op.Shape(x, start=lambda p, a: p[a], end=lambda p, a: p[a] + 1),
    where=lambda p, a, b: 0 <= a == b - 1 < len(p),
    opset=(15, None),
    doc="A size in the shape of Transpose(x) is read from the shape of x.",
    seen_in="pmsh-ocr/decoder_loop",
)

size_of_reshaped = rule(
    op.Shape(op("Reshape")(x, *ys).named("reshaped"), start=a, end=b)
    >> op.Shape(x, start=a, end=b),
    where=lambda x, reshaped, a, b: (
        0 <= a == b - 1 < min(x.rank, reshaped.rank) and x.shape[a] == reshaped.shape[a]
    ),
    opset=(15, None),
    doc="A size in the shape of Reshape(x) is read from the shape of x if it is the same there.",
    seen_in="pmsh-ocr/decoder_loop",
)
