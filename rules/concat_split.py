"""Joins and splits that meet: Concat, Split, sequences that are taken apart at once."""

from __future__ import annotations

from typing import Any

from onnxfold.rules.shapes import normal

from onnxfold.rewrite import (
    anything,
    attributes,
    computed,
    constant,
    constants,
    op,
    outputs,
    result,
    rule,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match

x, xs, ys, zs = values("x *xs *ys *zs")
c = constants("c")
a, b = attributes("a b")

# -------------------------------------------------------------------- joins and splits

_joined = op.Concat(*ys, axis=b)


def _same_axis(match: Match) -> bool:
    rank = match.rank(result)
    return normal([match[a]], rank) == normal([match[b]], rank) or match[a] == match[b]


concat_of_concat = rule(
    op.Concat(*xs, _joined, *zs, axis=a) >> op.Concat(*xs, *ys, *zs, axis=a),
    where=single_use(_joined) & _same_axis,
    opset=(4, None),
    doc="Parts joined along one axis are joined at once.",
)

_split = op("Split")


def _concat_of_split(count: int) -> Any:
    split = _split(x, *ys, axis=b)
    return rule(
        op.Concat(*(split[k] for k in range(count)), axis=a) >> x,
        where=lambda m: len(m.node(_split).outputs) == count and _same_axis(m),
        opset=(4, None),
        doc="All parts of a split are joined again, in their order.",
    )


concat_of_split = [_concat_of_split(count) for count in range(1, 9)]


def _split_sizes(match: Match) -> tuple[int, ...] | None:
    """The sizes of the parts that SplitToSequence makes."""
    given, shape = match.array(c), match.shape(x)
    if given is None or given.ndim:
        return None if given is None else tuple(int(size) for size in given)
    part, whole = int(given), None if shape is None else shape[match[a]]
    if not isinstance(whole, int) or part < 1:
        return None
    return tuple(min(part, whole - start) for start in range(0, whole, part))


def _split_of_sequence(count: int) -> Any:
    sequence = op.SplitToSequence(x, c, axis=a, keepdims=anything)
    split = op.Split(x, constant(computed(_split_sizes)), axis=a)
    return rule(
        outputs(*(op.SequenceAt(sequence, k) for k in range(count)))
        >> outputs(*(split[k] for k in range(count))),
        where=lambda m: len(_split_sizes(m) or ()) == count,
        opset=(13, None),
        doc="A sequence of parts, each taken out of it again, is a Split.",
    )


split_of_sequence = [_split_of_sequence(count) for count in range(2, 7)]
