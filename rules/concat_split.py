"""Joins and splits that meet: Concat, Split, sequences that are taken apart at once."""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import (
    Matched,
    anything,
    attributes,
    axis_from_front,
    constant,
    constants,
    given,
    op,
    outputs,
    rule,
    single_use,
    values,
)

x, xs, ys, zs = values("x *xs *ys *zs")
c = constants("c")
a, b = attributes("a b")

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
)

_split = op("Split")


@given
def _output_count(node: Matched) -> int:
    return len(node.node.outputs)


def _concat_of_split(count: int) -> Any:
    split = _split(x, *ys, axis=b)
    return rule(
        op.Concat(*(split[k] for k in range(count)), axis=a) >> x,
        where=(_output_count(_split) == count) & _same_axis,
        opset=(4, None),
        doc="All parts of a split are joined again, in their order.",
    )


concat_of_split = [_concat_of_split(count) for count in range(1, 9)]


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
def _length(sizes: tuple[int, ...]) -> int:
    return len(sizes)


def _split_of_sequence(count: int) -> Any:
    sequence = op.SplitToSequence(x, c, axis=a, keepdims=anything)
    split = op.Split(x, constant(_split_sizes), axis=a)
    return rule(
        outputs(*(op.SequenceAt(sequence, k) for k in range(count)))
        >> outputs(*(split[k] for k in range(count))),
        where=_length(_split_sizes) == count,
        opset=(13, None),
        doc="A sequence of parts, each taken out of it again, is a Split.",
    )


split_of_sequence = [_split_of_sequence(count) for count in range(2, 7)]
