"""Constants: conditions of other rule sets (no rules of its own)."""

from __future__ import annotations

import numpy as np

from onnxfold.rewrite import Matched

_MAX_DEPTH = 4
"""Nodes between a value and the constant that tells about its zeros."""

_OPERANDS = {
    "Expand": (0,),
    "Tile": (0,),
    "Add": (0, 1),  # a sum is -0.0 only if both operands are
    "Conv": (2,),  # a convolution ends with the sum with its bias
    "ConvTranspose": (2,),
}
"""Operands one of which tells that no element of a result is -0.0."""


def no_negative_zero(x: Matched, depth: int = _MAX_DEPTH) -> bool:
    """Return whether certainly no element is -0.0.

    The value is, repeats or adds a constant without one.
    """
    array = x.facts.known.array(x.value)
    if array is not None:
        number = array.astype(np.float64)
        return not bool((np.signbit(number) & (number == 0)).any())
    if not depth or not x.is_made_by(*_OPERANDS):
        return False
    operands = [x.inputs[k] for k in _OPERANDS[x.op_type] if k < len(x.inputs)]
    return any(no_negative_zero(each, depth - 1) for each in operands if each is not None)
