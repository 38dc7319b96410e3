"""Shapes and axes: what other rule sets ask and make (no rules of its own)."""

from __future__ import annotations

from onnxfold.analysis.symbolic import Number
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import constant

RESHAPING = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Ops that keep all elements in their order."""


def broadcast(*shapes: Shape) -> Shape | None:
    """Return the shape that shapes broadcast to; None if a size that is not known could decide."""
    dims: list[Number] = []
    for k in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-k] for shape in shapes if len(shape) >= k} - {1}
        if len(sizes) > 1:
            return None
        dims.append(sizes.pop() if sizes else 1)
    return tuple(reversed(dims))


def target_shape(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """Return what Reshape is told to make ``after`` of ``before``; None if it cannot be said."""
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


new_shape = constant(lambda x, result: target_shape(x.shape, result.shape))
"""The constant that makes a Reshape of ``x`` give the shape of the result."""
