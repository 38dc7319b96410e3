"""Transposes that meet each other or what they can be moved past, and transposes of nothing."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rules.elementwise import (
    BINARY,
    EXACT_ANYWHERE,
    VECTORIZED,
    depends_on_place,
    may_move,
)
from onnxfold.rules.shapes import RESHAPING, new_shape

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    attributes,
    constant,
    constants,
    given,
    op,
    rule,
    shape_of,
    single_use,
    values,
)

x, y, zs, ys = values("x y *zs *ys")
c = constants("c")
p, q = attributes("p q")


@given
def compose(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that does ``first`` and then ``second``."""
    return tuple(first[axis] for axis in second)


transpose_of_transpose = rule(
    op.Transpose(op.Transpose(x, perm=p), perm=q) >> op.Transpose(x, perm=compose(p, q)),
    doc="Two transposes are one.",
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
)

transpose_of_reshaped_ones = rule(
    op.Transpose(_inner, perm=p) >> op.Reshape(x, new_shape(x)),
    where=moves_only_ones(shape_of(_inner), p) & single_use(_inner),
    opset=(5, None),
    doc="A transpose that only moves axes of size 1 is part of the Reshape before it.",
)

# -------------------------------------------------------------------- transposes that meet

_unary = op.any_of(*EXACT_ANYWHERE, *VECTORIZED)
_binary = op.either_way(*BINARY)


@given
def _undone(p: tuple[int, ...], q: tuple[int, ...]) -> bool:
    return len(p) == len(q) and compose(p, q) == tuple(range(len(p)))


transpose_through_unary = rule(
    op.Transpose(_unary(_transposed), perm=q) >> op.Transpose(_unary(x), perm=compose(p, q)),
    where=(single_use(_transposed) | _undone) & may_move(_unary, x),
    inexact=depends_on_place(_unary, x),
    doc="Transposes on both sides of an element-wise op are one.",
)


@given
def full_rank(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape with axes of size 1 in front, up to the rank of the permutation."""
    missing = len(perm) - len(shape)
    return None if missing < 0 or 0 in shape else (1,) * missing + shape


_spread = op.Transpose(op.Reshape(c, constant(full_rank(shape_of(c), q))), perm=q)

transpose_through_binary = rule(
    op.Transpose(_binary(_transposed, c), perm=q)
    >> _binary(op.Transpose(x, perm=compose(p, q)), _spread),
    where=_undone,
    opset=(7, None),
    doc="The constant operand is transposed instead of what comes before and after.",
)

_transposed_y = op.Transpose(y, perm=p)

binary_of_transposed = rule(
    _binary(_transposed, _transposed_y) >> op.Transpose(_binary(x, y), perm=p),
    where=single_use(_transposed) & single_use(_transposed_y),
    opset=(7, None),
    doc="Both operands are transposed alike: the result can be, instead.",
)


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
)

matmul_of_transposed = rule(
    op.Transpose(op.MatMul(_transposed, op.Transpose(y, perm=p)), perm=p) >> op.MatMul(y, x),
    where=swaps_last_two(p),
    inexact=True,
    doc="The transpose of a product of transposed matrices is the product the other way round.",
)
