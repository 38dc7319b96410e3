"""Merge slices, concatenations and sequence ops, and read sizes directly from a Shape."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rewrite import *

_MIN_OPEN_END = 2**31 - 1
"""The smallest end of a slice that is treated as the end of the axis."""
_MAX_INT64 = 2**63 - 1
"""An end after the last element of any axis, and a step over all elements."""


def _bounds(sliced: Matched) -> dict[int, tuple[int, int, int]]:
    """Return the start, end and step of each axis that a Slice with constant bounds slices."""
    x, *bounds = sliced.inputs
    bounds += [None] * (4 - len(bounds))
    starts, ends, axes, steps = (None if bound is None else bound.ints for bound in bounds)
    from_front = [axis + x.rank if axis < 0 else axis for axis in axes or range(len(starts))]
    steps = steps or [1] * len(starts)
    return dict(zip(from_front, zip(starts, ends, steps, strict=True), strict=True))


@computed
def merged(x: Matched, sliced: Matched, outer: Matched) -> tuple[tuple[int, ...], ...] | None:
    """Return the starts, ends, axes and steps of one Slice that is equivalent to two Slices.

    The result is None if no such Slice is known. It is also None if both Slices have an axis in
    common, and a step of this axis is negative. For some ends of slices with negative steps, ONNX
    and onnxruntime disagree.

    Args:
        x: The operand of the first Slice.
        sliced: The result of the first Slice.
        outer: The result of the second Slice.
    """
    both = _bounds(sliced)
    for axis, (start2, end2, step2) in _bounds(outer).items():
        start, end, step = both.get(axis, (0, _MAX_INT64, 1))
        size = x.extent(axis)
        if axis not in both:
            both[axis] = start2, end2, step2
        elif min(step, step2) < 0:
            return None
        elif size is not None:
            kept = range(size)[start:end:step][start2:end2:step2]
            both[axis] = (kept.start, kept.stop, min(kept.step, _MAX_INT64)) if kept else (0, 0, 1)
        elif min(start, start2, end2) < 0 or (end < 0 and end2 < _MIN_OPEN_END):
            return None
        else:
            stop = end if end2 >= _MIN_OPEN_END else min(end, start + end2 * step)
            both[axis] = min(start + start2 * step, _MAX_INT64), stop, min(step * step2, _MAX_INT64)
    starts, ends, steps = zip(*both.values(), strict=True)
    return starts, ends, tuple(both), steps


@rule(shared=True, seen_in="silero-vad/silero_vad_16k_sequence")
def slice_of_slice(x, ys: Values, zs: Values):
    """x[a:b:c][d:e:f] == x[g:h:i]: two Slices with constant bounds are one."""
    sliced = op.Slice(x, *ys)
    both = merged(x, sliced, result)
    after = op.Slice(x, *(constant(both[k]) for k in range(4)))
    return op.Slice(sliced, *zs) >> after, where(sliced.is_only_read_by("Slice"))


@rule(opset=15, seen_in="pmsh-ocr/decoder_loop")
def size_of_one_axis(x, c: Constant):
    """Unsqueeze(Gather(Shape(x), c)) == Shape(x, start=c, end=c + 1), also without the Unsqueeze if
    c is a vector.
    """
    size = op.Gather(op.Shape(x), c)
    part = op.Shape(x, start=c.ints[0], end=c.ints[0] % x.rank + 1)
    return any_of(op.Unsqueeze(size, filled(0)), size) >> part, where(
        c.has_one_element, result.rank == 1
    )


@rule(opset=15, seen_in="pmsh-ocr/decoder_loop")
def sizes_of_some_axes(x, c: Constant, d: Constant):
    """Slice(Shape(x), c, d) == Shape(x, start=c, end=d)."""
    sliced = op.Slice(op.Shape(x), c, d, optional(filled(0)), optional(filled(1)))
    return sliced >> op.Shape(x, start=c.ints[0], end=d.ints[0])


@rule(opset=15, seen_in="pmsh-ocr/decoder_loop")
def size_of_transposed(x, p: Attribute, a: Attribute, b: Attribute):
    """Shape(Transpose(x, p), start=a, end=a + 1) == Shape(x, start=p[a], end=p[a] + 1)."""
    before = op.Shape(op.Transpose(x, perm=p), start=a, end=b)
    after = op.Shape(x, start=p[a], end=p[a] + 1)
    return before >> after, where(a >= 0, a == b - 1, b <= p.length)


@rule(opset=15, seen_in="pmsh-ocr/decoder_loop")
def size_of_reshaped(x, a: Attribute, b: Attribute, *ys):
    """Shape(Reshape(x), start=a, end=a + 1) == Shape(x, start=a, end=a + 1), if the sizes of axis a
    are equal.
    """
    reshaped = op("Reshape")(x, *ys)
    return op.Shape(reshaped, start=a, end=b) >> op.Shape(x, start=a, end=b), where(
        a >= 0, a == b - 1, b <= x.rank, b <= reshaped.rank, x.shape[a] == reshaped.shape[a]
    )


@rule(opset=4, seen_in="basic-pitch/nmp")
def concat_of_concat(xs: Values, ys: Values, zs: Values, a: Attribute, b: Attribute):
    """Concat(x, Concat(y, z)) == Concat(x, y, z) along the same axis."""
    joined = op.Concat(*ys, axis=b)
    return op.Concat(*xs, joined, *zs, axis=a) >> op.Concat(*xs, *ys, *zs, axis=a), where(
        joined.is_single_use, (a == b) | (joined.axes == result.axes)
    )


@computed
def has_one_user(x: Matched) -> bool:
    """Return whether a value has one consumer, which may read it several times."""
    return len(x.users) == 1 and not x.is_graph_output


@rule(opset=4, shared=True, seen_in="torch/joined_twice")
def concat_of_repeated_concat(xs: Values, ys: Values, zs: Values, us: Values, a: Attribute):
    """Concat(c, x, c) == Concat(y, z, x, y, z) for c = Concat(y, z) along the same axis, if c has
    no other consumers.
    """
    joined = op.Concat(*ys, axis=a)
    after = op.Concat(*xs, *ys, *zs, *ys, *us, axis=a)
    return op.Concat(*xs, joined, *zs, joined, *us, axis=a) >> after, where(has_one_user(joined))


@rule(opset=4, seen_in="brainmaze-eeg-models/spindle-detector-eeg")
def concat_with_nothing(xs: Values, x, zs: Values, a: Attribute):
    """Concat(x, y) == y, if x has size 0 along the axis."""
    return op.Concat(*xs, x, *zs, axis=a) >> op.Concat(*xs, *zs, axis=a), where(x.extent(a) == 0)


def _sizes_along(values: Sequence[Matched], axis: int) -> int | None:
    """Return the sum of the sizes of values on an axis; None if one is unknown."""
    sizes = [value.extent(axis) for value in values]
    return None if None in sizes else sum(size for size in sizes if size is not None)


@computed
def is_slice_of_operand(
    xs: Sequence[Matched], x: Matched, ys: Sequence[Matched], sliced: Matched, axis: int
) -> bool:
    """Return whether a Slice of a Concat of ``xs``, ``x`` and ``ys`` has the elements of ``x``."""
    axis %= x.rank
    bounds = _bounds(sliced)
    before = _sizes_along(xs, axis)
    if set(bounds) != {axis} or before is None:
        return False
    start, end, step = bounds[axis]
    if start < 0 or step != 1:
        return False
    if not ys and end >= _MIN_OPEN_END:
        return start == before
    size = x.extent(axis)
    return size is not None and (start, end) == (before, before + size)


@rule(opset=10, shared=True, seen_in="torch/split_and_joined")
def slice_of_concat(xs: Values, x, ys: Values, zs: Values, a: Attribute):
    """Concat(w, x, y)[a:b] == x, if the bounds are those of x."""
    return op.Slice(op.Concat(*xs, x, *ys, axis=a), *zs) >> x, where(
        is_slice_of_operand(xs, x, ys, result, a)
    )


@computed
def is_index_of_operand(
    xs: Sequence[Matched], ys: Sequence[Matched], index: int, axis: int
) -> bool:
    """Return whether an index into a Concat selects the operand between ``xs`` and ``ys``."""
    before = _sizes_along(xs, axis)
    after = _sizes_along(ys, axis)
    return index in (before, None if after is None else -1 - after)


@rule(opset=4, shared=True, seen_in="torch/stacked")
def gather_of_stack(xs: Values, x, ys: Values, zs: Values, i: Constant, a: Attribute, b: Attribute):
    """Gather(Concat(w, Unsqueeze(x), y), i) == x, if i is the index of x."""
    part = op("Unsqueeze")(x, *zs)
    stack = op.Concat(*xs, part, *ys, axis=a)
    return op.Gather(stack, i, axis=b) >> x, where(
        i.rank == 0,
        part.axes == stack.axes,
        (a - b) % part.rank == 0,
        is_index_of_operand(xs, ys, i.number, a),
    )


@computed
def has_parts(split: Matched, axis: int, *operands: Matched | None) -> bool:
    """Return whether the results of a Split have the sizes of operands on an axis."""
    present = [operand for operand in operands if operand is not None]
    shapes = [split.facts.types.of(value).shape for value in split.node.outputs]
    return len(shapes) == len(present) and all(
        shape is not None and shape[axis] == operand.shape[axis]
        for shape, operand in zip(shapes, present, strict=True)
    )


@rule(each=[(2,), (3,), (4,)], opset=2, shared=True, seen_in="torch/split_and_joined")
def split_of_concat(w, x, y, z, sizes, a: Attribute, parts):
    """Split(Concat(x, y)) == (x, y), if the sizes are those of x and y; for up to four operands."""
    operands = (w, x, y, z)[:parts]
    joined = op.Concat(*operands, axis=a)
    split = op("Split")(joined, optional(sizes))
    before = outputs(*(split[k] for k in range(parts)))
    return before >> outputs(*operands), where(
        split.axes == joined.axes, has_parts(split, joined.axes[0], *operands)
    )


_MAX_PARTS = 4
"""Maximum number of outputs of a Split to which the rules `squeeze_of_split` apply.

There is one rule for each output."""


@computed
def are_squeezed_elements(split: Matched) -> bool:
    """Return whether all parts of a Split have size 1, and are read only by Squeezes of its axis.

    The Split must have at most `_MAX_PARTS` parts. No part may be a graph output.
    """
    (axis,) = split.axes
    parts = [Matched(value, split.facts) for value in split.node.outputs]
    users = [user for part in parts for user in part.users]
    return (
        len(parts) <= _MAX_PARTS
        and all(part.extent(axis) == 1 and not part.is_graph_output for part in parts)
        and all(user.op_type == "Squeeze" and user.axes == (axis,) for user in users)
    )


@rule(each=[(k,) for k in range(_MAX_PARTS)], opset=2, shared=True, seen_in="torch/unbound")
def squeeze_of_split(x, sizes, ys: Values, index):
    """Squeeze(Split(x)[k]) == Gather(x, k), if the Split has parts of size 1."""
    split = op("Split")(x, optional(sizes))
    squeezed = op("Squeeze")(split[index], *ys)
    return squeezed >> op.Gather(x, constant(index), axis=split.axes[0]), where(
        are_squeezed_elements(split)
    )


@rule(opset=11, on_constants=True, seen_in="onnxscript/sequence_at")
def part_of_sequence(xs: Values, x, ys: Values, i: Constant):
    """SequenceAt(SequenceConstruct(w, x, y), i) == x, if i is the index of x."""
    sequence = op.SequenceConstruct(*xs, x, *ys)
    return op.SequenceAt(sequence, i) >> x, where(i.number.is_in(xs.length, -1 - ys.length))


@rule(opset=11, seen_in="onnxscript/redundant_scatter_nd")
def scatter_of_all_rows(x, y, c: Constant, ys: Values):
    """ScatterND(x, (0, 1, 2, ...), y) == y, if y has the shape of x."""
    indices = any_of(op("Unsqueeze")(op.Range(0, anything, 1), *ys), c)
    # if the shapes are equal, there is one index for each row
    return op.ScatterND(x, indices, y) >> y, where(
        y.same_shape(result), c.is_omitted | c.ints.is_identity
    )


@computed
def sizes_of_parts(x: Matched, c: Matched, a: int) -> tuple[int, ...]:
    """Return the sizes of the parts of a SplitToSequence; () for an invalid size.

    Args:
        x: The operand.
        c: A vector with the size of each part, or one number for parts of equal size.
        a: The axis.
    """
    if c.rank:
        return c.ints
    (part,) = c.ints
    (size,) = x.sizes_of([a])
    return tuple(min(part, size - start) for start in range(0, size, part)) if part > 0 else ()


# Common-subexpression elimination merges the Splits for several parts of one sequence.
@rule(opset=13, on_constants=True, seen_in="torch/chunks")
def split_of_sequence(x, c: Constant, i: Constant, a: Attribute, k: Attribute):
    """SequenceAt(SplitToSequence(x), i) == Split(x)[i] for a constant i."""
    sequence = op.SplitToSequence(x, c, axis=a, keepdims=k)
    parts = sizes_of_parts(x, c, a)
    split = op.Split(x, constant(parts), axis=a, _outputs=parts.length)
    return op.SequenceAt(sequence, i) >> split[i.number % parts.length], where(
        -parts.length <= i.number,
        i.number < parts.length,
        # all consumers read a constant index
        sequence.is_only_read_by("SequenceAt"),
        # for parts of equal size, onnxruntime drops the axis with keepdims=0, where ONNX keeps it
        (k == 1) | (c.rank == 1),
    )
