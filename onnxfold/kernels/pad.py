"""Pad."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfold.kernels.dtypes import STRING, Integers, check_allocatable, integers, normalized_axis
from onnxfold.kernels.registry import Array, NotExact, Unfoldable, kernel


@kernel("Pad", since=2)
def pad(
    x: Array,
    pads: Integers,
    value: Array | float | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """``x`` with elements added (or, where a width is negative, taken off) at both ends of axes.

    ``pads`` lists all widths at the beginnings, then all at the ends.
    """
    which = range(x.ndim) if axes is None else integers(axes, "axes")
    widths = _widths(x.ndim, integers(pads, "pads"), which)
    shape = _shape(x, widths)
    check_allocatable(shape, x.dtype)
    if mode == "constant":
        zero = "" if x.dtype == STRING else 0
        fill = np.asarray(zero if value is None else value, x.dtype)
        return _padded_with(fill.reshape(()), x, widths, shape)
    index = [_places(d, *pair, mode) for d, pair in zip(x.shape, widths, strict=True)]
    return np.asarray(x[np.ix_(*index)]) if index else x


def _widths(rank: int, pads: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    if len(pads) != 2 * len(axes):
        raise Unfoldable(f"{len(pads)} pads for {len(axes)} axes")
    widths = [(0, 0)] * rank
    for k, axis in enumerate(axes):
        widths[normalized_axis(axis, rank)] = (pads[k], pads[k + len(axes)])
    return widths


def _shape(x: Array, widths: list[tuple[int, int]]) -> list[int]:
    shape = [d + before + after for d, (before, after) in zip(x.shape, widths, strict=True)]
    if min(shape, default=0) < 0:
        raise Unfoldable(f"pads {widths} take more than there is of shape {list(x.shape)}")
    left = [d + min(a, 0) + min(b, 0) for d, (a, b) in zip(x.shape, widths, strict=True)]
    if x.size and min(left, default=1) <= 0:
        raise NotExact("not all releases of onnxruntime agree where all of an axis is taken off")
    return shape


def _padded_with(fill: Array, x: Array, widths: list[tuple[int, int]], shape: list[int]) -> Array:
    result = np.empty(shape, x.dtype)
    result[...] = fill
    source, target = [], []
    for d, (before, after) in zip(x.shape, widths, strict=True):
        start, stop = max(0, -before), d - max(0, -after)
        if stop <= start:
            return result
        source.append(slice(start, stop))
        target.append(slice(start + before, stop + before))
    result[tuple(target)] = x[tuple(source)]
    return result


def _places(d: int, before: int, after: int, mode: str) -> Array:
    """Return where along an axis of extent ``d`` the elements of the padded one come from."""
    if min(before, after) < 0:
        raise NotExact(f"negative pads in mode {mode}")
    if max(before, after) > (d - 1 if mode == "reflect" else d) or d == 0:
        raise NotExact(f"pads ({before}, {after}) exceed dimension {d}")
    places = np.arange(-before, d + after)
    if mode == "edge":
        return places.clip(0, d - 1)
    if mode == "wrap":
        return places % d
    if mode == "reflect":
        # ... 2 1 | 0 1 2 3 | 2 1 ...: a triangle wave of the dimension's size.
        return np.asarray((d - 1) - np.abs((d - 1) - np.abs(places)))
    raise NotExact(f"mode {mode}")
