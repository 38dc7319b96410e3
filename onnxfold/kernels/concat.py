"""Concat."""

from __future__ import annotations

import numpy as np

from onnxfold.kernels.dtypes import check_allocatable, normalized_axis
from onnxfold.kernels.registry import Array, Kind, Unfoldable, kernel


@kernel("Concat", since=4, kind=Kind.ASSEMBLED)
def concat(*operands: Array, axis: int) -> Array:
    """The operands one after the other along ``axis``; all other dimensions are the same."""
    first = operands[0]
    if len(operands) == 1:
        return first
    axis = normalized_axis(axis, first.ndim)
    frame = first.shape[:axis] + first.shape[axis + 1 :]
    for x in operands:
        if x.ndim != first.ndim or x.shape[:axis] + x.shape[axis + 1 :] != frame:
            shapes = [list(x.shape) for x in operands]
            raise Unfoldable(f"shapes {shapes} do not fit together along axis {axis}")
    total = sum(x.shape[axis] for x in operands)
    check_allocatable((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)
    return np.concatenate(operands, axis=axis)
