"""Updates by index: Scatter, ScatterElements, ScatterND."""

from __future__ import annotations

import numpy as np

from onnxfold.kernels.dtypes import check_allocatable, normalized_axis
from onnxfold.kernels.gather import check_indices, element_index
from onnxfold.kernels.registry import Array, NotExact, Unfoldable, kernel


@kernel("Scatter", "ScatterElements", since=9)
def scatter_elements(
    x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """A copy of ``x`` with ``x[i, indices[i, j, ...], ...] = updates[i, j, ...]`` for ``axis`` 1.

    Of several updates at one place the last wins. To reduce them is left to onnxruntime.
    """
    axis = normalized_axis(axis, x.ndim)
    if updates.shape != indices.shape:
        raise Unfoldable("updates and indices differ in shape")
    return _updated(x, element_index(x, indices, axis), updates, reduction)


@kernel("ScatterND", since=11)
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """A copy of ``x`` with the slices at the coordinates in the last axis of ``indices`` replaced.

    Of several updates at one place the last wins. To reduce them is left to onnxruntime.
    """
    if indices.ndim == 0 or indices.shape[-1] > x.ndim:
        raise Unfoldable(f"indices of shape {list(indices.shape)} for rank {x.ndim}")
    depth = indices.shape[-1]
    if updates.shape != indices.shape[:-1] + x.shape[depth:]:
        raise Unfoldable(f"updates of shape {list(updates.shape)} do not fit")
    if depth == 0:
        raise NotExact("coordinates of length 0")
    for k in range(depth):
        check_indices(indices[..., k], x.shape[k])
    return _updated(x, tuple(indices[..., k] for k in range(depth)), updates, reduction)


def _updated(x: Array, index: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    if reduction != "none":
        raise NotExact(f"reduction {reduction}")
    check_allocatable(x.shape, x.dtype)
    result = np.array(x, order="C")
    result[index] = updates
    return result
