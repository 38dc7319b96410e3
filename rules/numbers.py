"""Constants: conditions of other rule sets (no rules of its own)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.rewrite import Matched, given


@given
def no_negative_zero(v: Matched) -> bool:
    """The value is a small constant without -0.0, repeats one, or adds one to something else."""
    return _has_none(v.value, v.facts.known)


def _has_none(value: ir.Value | None, known: KnownValues) -> bool:
    if value is None:
        return False
    array = known.array(value)
    if array is not None:
        number = array.astype(np.float64)
        return not bool((np.signbit(number) & (number == 0)).any())
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in ("Expand", "Tile"):
        return _has_none(node.inputs[0], known)
    if node.op_type == "Add":  # the sum of two is -0.0 if both are
        return any(known.array(v) is not None and _has_none(v, known) for v in node.inputs)
    return False


@given
def is_scale(scaling: Matched, c: Matched) -> bool:
    """The op multiplies by the small constant, or divides by it: a quotient by 0 is no number."""
    return scaling.op_type != "Div" or bool(np.all(c.array != 0))
