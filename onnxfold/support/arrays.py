"""A view of the distinct elements of arrays whose strides repeat elements."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


def distinct(array: Array) -> Array:
    """Return a view of an array with size 1 along axes with stride 0, which repeat elements.

    Such an axis with size 0 keeps its size.
    """
    slices = [slice(0, 1) if stride == 0 else slice(None) for stride in array.strides]
    index = (*slices, ...)  # without axes, the ellipsis makes the result an array, not an element
    return array[index]
