"""Looking at what a kernel is about to be called with: its code does not look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfold.onnxruntime_sessions import Feed, numpy_name
from onnxfold.runtime.backends.base import Misfit, Values
from onnxfold.runtime.bundles.manifest import TensorInfo


def fitting(takes: Sequence[TensorInfo], values: Values) -> Values:
    """The values, if they are what a kernel was compiled for.

    Args:
        takes: What its inputs must be.
        values: Arrays or onnxruntime's values by name.

    Raises:
        Misfit: Element types, ranks or sizes are others, sizes of the same name differ, or there
            are no elements: code that was compiled may divide by such a size.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for info in takes:
        shape, dims = _shape(values[info.name]), info.shape or []
        if not _has_type(values[info.name], info.dtype):
            raise Misfit(f"{info.name!r} is no tensor of {info.dtype}")
        if len(shape) != len(dims):
            raise Misfit(f"{info.name!r} has {len(shape)} dims, not {len(dims)}")
        for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
            if size == 0:
                raise Misfit(f"{info.name!r} of shape {shape} has no elements")
            if isinstance(dim, int) and size != dim:
                raise Misfit(f"{info.name!r} has {size} on axis {axis}, not {dim}")
            if isinstance(dim, str):
                other, known = sizes.setdefault(dim, (info.name, size))
                if size != known:
                    raise Misfit(f"{dim!r} is {known} in {other!r} and {size} in {info.name!r}")
    return values


def _shape(value: Feed) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else tuple(value.shape())


def _has_type(value: Feed, dtype: str) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype.name == numpy_name(dtype))
    return bool(value.data_type() == f"tensor({dtype})")
