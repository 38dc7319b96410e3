"""Constants: conditions of other rule sets (no rules of its own)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.rewrite import Matched, given

_MAX_DEPTH = 4
"""Nodes between a value and the constant that tells about its zeros."""


@given
def no_negative_zero(v: Matched) -> bool:
    """Certainly no element is -0.0: the value is, repeats or adds a constant without one.

    A sum is -0.0 only if both operands are. A convolution ends with the sum with its bias.
    """
    return _has_none(v.value, v.facts.known, _MAX_DEPTH)


def _has_none(value: ir.Value | None, known: KnownValues, depth: int) -> bool:
    array = None if value is None else known.array(value)
    if array is not None:
        number = array.astype(np.float64)
        return not bool((np.signbit(number) & (number == 0)).any())
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth:
        return False
    operands = {"Expand": (0,), "Tile": (0,), "Add": (0, 1), "Conv": (2,), "ConvTranspose": (2,)}
    places = operands.get(node.op_type, ())
    return any(_has_none(node.inputs[k], known, depth - 1) for k in places if k < len(node.inputs))


@given
def is_scale(scaling: Matched, c: Matched) -> bool:
    """The op multiplies by the small constant, or divides by it: a quotient by 0 is no number."""
    return scaling.op_type != "Div" or bool(np.all(c.array != 0))
