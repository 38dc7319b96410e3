"""Constants: conditions of other rule sets (no rules of its own)."""

from __future__ import annotations

import numpy as np

from onnxfold.rewrite import Matched, given


@given
def no_negative_zero(v: Matched) -> bool:
    """The value is a small constant without -0.0."""
    number = v.array.astype(np.float64)
    return not bool((np.signbit(number) & (number == 0)).any())


@given
def is_scale(scaling: Matched, c: Matched) -> bool:
    """The op multiplies by the small constant, or divides by it: a quotient by 0 is no number."""
    return scaling.op_type != "Div" or bool(np.all(c.array != 0))
