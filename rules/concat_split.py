"""Joins and splits that meet: Concat, Split, sequences that are taken apart at once."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.rewrite import (
    Matched,
    attributes,
    axis_from_front,
    constant,
    constants,
    given,
    known,
    op,
    rank_of,
    rule,
    single_use,
    values,
)

x, xs, ys, zs = values("x *xs *ys *zs")
c, i = constants("c i")
a, b, k = attributes("a b k")

# -------------------------------------------------------------------- joins and splits

_joined = op.Concat(*ys, axis=b)


@given
def _same_axis(result: Matched, a: int, b: int) -> bool:
    return a == b or axis_from_front(a, result.rank) == axis_from_front(b, result.rank)


concat_of_concat = rule(
    op.Concat(*xs, _joined, *zs, axis=a) >> op.Concat(*xs, *ys, *zs, axis=a),
    where=single_use(_joined) & _same_axis,
    opset=(4, None),
    doc="Parts joined along one axis are joined at once.",
    seen_in="basic-pitch/nmp",
)

_concat = op("Concat")


@given
def _is_nothing(concat: Matched, x: Matched, a: int) -> bool:
    """The part has no elements along the axis, and others are left."""
    return x.extent(a) == 0 and len(concat.node.inputs) > 1


concat_with_nothing = rule(
    _concat(*xs, x, *zs, axis=a) >> op.Concat(*xs, *zs, axis=a),
    where=_is_nothing(_concat, x, a),
    opset=(4, None),
    doc="A part of size 0 adds nothing.",
    seen_in="brainmaze-eeg-models/spindle-detector-eeg",
)


@given
def _split_sizes(x: Matched, c: Matched, a: int) -> tuple[int, ...] | None:
    """The sizes of the parts that SplitToSequence makes."""
    if c.rank:
        return c.ints
    part, whole = c.ints[0], x.extent(a)
    if whole is None or part < 1:
        return None
    return tuple(min(part, whole - start) for start in range(0, whole, part))


@given
def _length(sizes: Sequence[int]) -> int:
    return len(sizes)


@given
def _place(sizes: Sequence[int], i: Matched) -> int | None:
    """Which part is taken, counted from the front."""
    place, count = int(i.number), len(sizes)
    return place % count if -count <= place < count else None


@given
def _is_taken_apart(sequence: Matched) -> bool:
    """All that is done with the sequence is taking known parts out of it."""

    def takes_a_part(node: ir.Node) -> bool:
        if node.op_type != "SequenceAt" or node.inputs[1] is None:
            return False
        place = sequence.facts.known.array(node.inputs[1])
        return place is not None and place.size == 1

    return not sequence.value.is_graph_output() and all(
        takes_a_part(use.node) for use in sequence.value.uses()
    )


_sequence = op.SplitToSequence(x, c, axis=a, keepdims=k)
_parts = op.Split(x, constant(_split_sizes), axis=a, _outputs=_length(_split_sizes))

# the splits that the parts come from are one when common subexpressions are
split_of_sequence = rule(
    op.SequenceAt(_sequence, i) >> _parts[_place(_split_sizes, i)],
    # of parts of one size onnxruntime drops the axis if it is told to, where ONNX keeps it
    where=((k == 1) | (rank_of(c) == 1))
    & known(_place(_split_sizes, i))
    & _is_taken_apart(_sequence),
    opset=(13, None),
    doc="A part of a sequence of parts is a part of a Split.",
    seen_in="torch/chunks",
)
