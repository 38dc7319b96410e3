"""NumPy arrays whose strides repeat elements."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


def distinct(array: Array) -> Array:
    """Return the array without the axes that only repeat its elements."""
    once = [slice(0, 1) if stride == 0 else slice(None) for stride in array.strides]
    index = (*once, ...)  # for an array without axes, the ellipsis gives an array, not an element
    return array[index]
