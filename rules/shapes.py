"""Shapes and axes: terms and conditions of other rule sets (no rules of its own)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.symbolic import Number
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import constant, result, shape_of, symbolic
from onnxfold.rewrite.match import Match

RESHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Ops that keep all elements in their order."""


_HIGHEST_RANK = 64
"""No tensor has more axes: what counts them needs no more room."""


def axis_of(axis: int, rank: int | None) -> int | None:
    """An axis counted from the front; None if there is none such, or it takes the rank."""
    if rank is None:
        return axis if 0 <= axis < _HIGHEST_RANK else None
    return axis % rank if -rank <= axis < rank else None


def normal(axes: Sequence[int] | None, rank: int | None) -> tuple[int, ...] | None:
    """Axes counted from the front, in order; None if that takes a rank that is not known."""
    if axes is None:
        return None
    found = {axis_of(axis, rank) for axis in axes}
    if None in found or len(found) != len(axes):
        return None
    return tuple(sorted(axis for axis in found if axis is not None))


def axes_of(match: Match, node: ir.Node, rank: int | None) -> tuple[int, ...] | None:
    """The axes of a node, in its attribute or second input; None if they are not known.

    Nor are they if there are none: what that means depends on the op, and on its version.
    """
    written = node.attributes.get("axes")
    if written is not None:
        return None if written.is_ref() else normal(written.value, rank) or None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    array = None if given is None else match.array(given)
    return None if array is None else normal([int(axis) for axis in array.ravel()], rank) or None


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that shapes broadcast to; None if a size that is not known could decide."""
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    dims: list[Number] = []
    for k in range(1, max(len(shape) for shape in known) + 1):
        sizes = {shape[-k] for shape in known if len(shape) >= k} - {1}
        if len(sizes) > 1:
            return None
        dims.append(sizes.pop() if sizes else 1)
    return tuple(reversed(dims))


def target_shape(before: Shape | None, after: Shape | None) -> tuple[int, ...] | None:
    """What Reshape is told to make ``after`` of ``before``; None if it cannot be said."""
    if before is None or after is None:
        return None
    sizes: list[int] = []
    for k, size in enumerate(after):
        if isinstance(size, int) and size > 0:
            sizes.append(size)
        elif k < len(before) and size == before[k]:
            sizes.append(0)  # the size that it has
        else:
            sizes.append(-1 if not isinstance(size, int) else -2)
    # beside a -1 there must be no size that is 0 when the model runs
    if -2 in sizes or sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes):
        return None
    return tuple(sizes)


def new_shape(*operands: Any) -> Any:
    """The constant that makes a Reshape of ``operands[0]`` give the shape of the result."""
    return constant(symbolic(target_shape)(shape_of(operands[0]), shape_of(result)))


def one_axis(of: Any, *reductions: Any) -> Callable[[Match], int | None]:
    """The one axis that all reductions of a value keep as size 1, counted from the front.

    Args:
        of: The value.
        reductions: Op variables.
    """

    def only_axis(match: Match) -> int | None:
        found = set()
        for reduction in reductions:
            node = match.node(reduction)
            axes = axes_of(match, node, match.rank(of))
            if axes is None or len(axes) != 1 or match.attribute(reduction, "keepdims") != 1:
                return None
            found.add(axes[0])
        return found.pop() if len(found) == 1 else None

    return only_axis
