"""Merge adjacent Concat, Split and sequence ops."""

from __future__ import annotations

from onnxfold.rewrite import (
    Attribute,
    Constant,
    Matched,
    Values,
    computed,
    constant,
    op,
    result,
    rule,
    where,
)


@rule(opset=4, seen_in="basic-pitch/nmp")
def concat_of_concat(xs: Values, ys: Values, zs: Values, a: Attribute, b: Attribute):
    """Concat of a Concat along the same axis is one Concat."""
    joined = op.Concat(*ys, axis=b)
    return op.Concat(*xs, joined, *zs, axis=a) >> op.Concat(*xs, *ys, *zs, axis=a), where(
        joined.is_single_use,
        (a == b) | (joined.axes == result.axes),
    )


@rule(opset=4, seen_in="brainmaze-eeg-models/spindle-detector-eeg")
def concat_with_nothing(xs: Values, x, zs: Values, a: Attribute):
    """An operand of Concat with size 0 along its axis is removed."""
    return op.Concat(*xs, x, *zs, axis=a) >> op.Concat(*xs, *zs, axis=a), where(x.extent(a) == 0)


# -------------------------------------------------------------------- sequences


@rule(opset=11, on_constants=True, seen_in="onnxscript/sequence_at")
def part_of_sequence(xs: Values, x, ys: Values, i: Constant):
    """SequenceAt of SequenceConstruct, with a known place, is the operand at this place."""
    sequence = op.SequenceConstruct(*xs, x, *ys)
    return op.SequenceAt(sequence, i) >> x, where(i.number.is_in(xs.length, -1 - ys.length))


@computed
def sizes_of_parts(x: Matched, c: Matched, a: int) -> tuple[int, ...]:
    """Return the sizes of the outputs of SplitToSequence."""
    if c.rank:
        return c.ints
    (part,), (whole,) = c.ints, x.sizes_of([a])
    return tuple(min(part, whole - start) for start in range(0, whole, part)) if part > 0 else ()


# the splits of several parts are merged as common subexpressions
@rule(opset=13, on_constants=True, seen_in="torch/chunks")
def split_of_sequence(x, c: Constant, i: Constant, a: Attribute, k: Attribute):
    """SequenceAt of SplitToSequence, with a known index, is an output of Split."""
    sequence = op.SplitToSequence(x, c, axis=a, keepdims=k)
    parts = sizes_of_parts(x, c, a)
    split = op.Split(x, constant(parts), axis=a, _outputs=parts.length)
    return op.SequenceAt(sequence, i) >> split[i.number % parts.length], where(
        -parts.length <= i.number,
        i.number < parts.length,
        # the sequence is used only to read known parts of it
        sequence.is_only_read_by("SequenceAt"),
        # for parts of equal size, onnxruntime drops the axis with keepdims=0, where ONNX keeps it
        (k == 1) | (c.rank == 1),
    )
