"""Comparisons of the elements of arrays with a number and with each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxfold.fold.pool.blocks import boxes
from onnxfold.support.arrays import Array, distinct

_MAX_BLOCK_ELEMENTS = 1 << 18
"""Maximum number of elements of a block that is tested at once."""


def is_exactly(array: Array, number: float) -> bool:
    """Return whether all elements equal ``number``; 0.0 and -0.0 differ.

    The result is True for an empty array. It is False for strings and complex numbers, and if
    either the elements or ``number`` are boolean, but not both.
    """
    kind = array.dtype.kind
    if isinstance(number, bool) != (kind == "b") or kind in "OSUc":
        return False
    with np.errstate(all="ignore"):
        converted = np.asarray(number).astype(array.dtype)
    if (converted.item() if kind in "iub" else float(converted)) != number:
        return False  # the dtype does not represent the number
    if not bool((array == converted).all()):
        return False
    if number == 0 and kind in "fV":
        return bool((np.signbit(array.astype(np.float32)) == np.signbit(float(number))).all())
    return True


def repeated(array: Array) -> Array:
    """Return a vector with the element that an array repeats.

    The vector is empty if elements differ, and for empty arrays, NaN, strings and complex numbers.
    """
    kind = array.dtype.kind
    first: Array = array[(slice(1),) * array.ndim].reshape(-1).copy()
    if first.size == 0 or kind in "OSUc" or first[0] != array[(-1,) * array.ndim]:
        return np.empty(0)
    number = first[0].item() if kind in "iub" else float(first[0])
    is_repeated = all_pass(array, lambda part: is_exactly(part, number))
    return first if is_repeated else np.empty(0)


def all_pass(array: Array, test: Callable[[Array], bool]) -> bool:
    """Return whether a test is true for every block of an array; False for an empty array."""
    if array.size == 0:
        return False
    # an axis with stride 0 repeats elements, which need to be tested only once
    array = distinct(np.atleast_1d(array))
    return all(test(array[box]) for box in boxes(array.shape, _MAX_BLOCK_ELEMENTS))
