"""Concat, Split and sequences that meet."""

from __future__ import annotations

from onnxfold.rewrite import (
    Matched,
    attributes,
    axis_from_front,
    constant,
    constants,
    op,
    rule,
    values,
)

x, xs, ys, zs = values("x *xs *ys *zs")
c, i = constants("c i")
a, b, k = attributes("a b k")

concat_of_concat = rule(
    op.Concat(*xs, op.Concat(*ys, axis=b).named("joined"), *zs, axis=a)
    >> op.Concat(*xs, *ys, *zs, axis=a),
    where=lambda a, b, joined, result: (
        joined.is_single_use
        and (a == b or axis_from_front(a, result.rank) == axis_from_front(b, result.rank))
    ),
    opset=(4, None),
    doc="Concat of a Concat along the same axis is one Concat.",
    seen_in="basic-pitch/nmp",
)

concat_with_nothing = rule(
    op.Concat(*xs, x, *zs, axis=a) >> op.Concat(*xs, *zs, axis=a),
    where=lambda x, xs, zs, a: x.extent(a) == 0 and bool(xs or zs),
    opset=(4, None),
    doc="An operand of Concat with size 0 along its axis is removed.",
    seen_in="brainmaze-eeg-models/spindle-detector-eeg",
)

# -------------------------------------------------------------------- sequences


def _sizes(x: Matched, c: Matched, a: int) -> tuple[int, ...]:
    """Return the sizes of the parts that SplitToSequence makes."""
    if c.rank:
        return c.ints
    (part,), (whole,) = c.ints, x.sizes_of([a])
    return tuple(min(part, whole - start) for start in range(0, whole, part)) if part > 0 else ()


# the splits that the parts come from are one when common subexpressions are
split_of_sequence = rule(
    op.SequenceAt(op.SplitToSequence(x, c, axis=a, keepdims=k).named("sequence"), i)
    >> op.Split(x, constant(_sizes), axis=a, _outputs=lambda x, c, a: len(_sizes(x, c, a)))[
        lambda x, c, a, i: int(i.number) % len(_sizes(x, c, a))
    ],
    where=[
        lambda x, c, a, i: -len(_sizes(x, c, a)) <= i.number < len(_sizes(x, c, a)),
        lambda c, k, sequence: (
            # of parts of one size onnxruntime drops the axis if it is told to, where ONNX keeps it
            (k == 1 or c.rank == 1)
            # all that is done with the sequence is taking known parts out of it
            and not sequence.is_graph_output
            and all(
                user.is_made_by("SequenceAt") and user.inputs[1].number is not None
                for user in sequence.users
            )
        ),
    ],
    opset=(13, None),
    doc="SequenceAt of SplitToSequence, with a known place, is an output of Split.",
    seen_in="torch/chunks",
)
