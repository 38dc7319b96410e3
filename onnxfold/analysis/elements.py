"""Properties of the elements of arrays: equal to a number, all equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxfold.fold.pool.blocks import boxes
from onnxfold.support.arrays import Array, distinct

_ELEMENTS = 1 << 18
"""Maximum number of elements of a block that is tested at once."""


def is_exactly(array: Array, number: float) -> bool:
    """Return True if all elements are ``number``; zeros have the same sign."""
    kind = array.dtype.kind
    if isinstance(number, bool) != (kind == "b") or kind in "OSUc":
        return False
    with np.errstate(all="ignore"):
        converted = np.asarray(number).astype(array.dtype)
    if (converted.item() if kind in "iub" else float(converted)) != number:
        return False  # no element of that dtype is the number
    if not bool((array == converted).all()):
        return False
    if number == 0 and kind in "fV":
        return bool((np.signbit(array.astype(np.float32)) == np.signbit(float(number))).all())
    return True


def repeated(array: Array) -> Array:
    """Return the element that an array repeats, as a vector; an empty vector if elements differ."""
    kind = array.dtype.kind
    first: Array = array[(slice(1),) * array.ndim].reshape(-1).copy()
    if first.size == 0 or kind in "OSUc" or first[0] != array[(-1,) * array.ndim]:
        return np.empty(0)
    number = first[0].item() if kind in "iub" else float(first[0])
    alike = all_pass(array, lambda part: is_exactly(part, number))
    return first[:alike]


def all_pass(array: Array, test: Callable[[Array], bool]) -> bool:
    """Return whether a test holds for every block of an array; False for an empty array."""
    if array.size == 0:
        return False
    # an axis with stride 0 repeats the same elements
    array = distinct(np.atleast_1d(array))
    return all(test(array[box]) for box in boxes(array.shape, _ELEMENTS))
