"""Scales and shifts: what two passes over memory do, one does.

A sum or a product is rounded elsewhere then, so the rules here are for level 2.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxfold.rules.convolutions import is_unpadded
from onnxfold.rules.weights import per_channel, spread

from onnxfold.rewrite import constant, constants, op, rule, values

x, s = values("x s")
c, d = constants("c d")

_FLOAT = ir.DataType.FLOAT

scale_and_shift = rule(
    op.Add(op.Mul(x, c).named("scaled"), d)
    >> op.BatchNormalization(
        x,
        spread(c, lambda x: x.shape[1:2]),
        spread(d, lambda x: x.shape[1:2]),
        constant(lambda x: (0.0,) * x.shape[1], _FLOAT),
        constant(lambda x: (1.0,) * x.shape[1], _FLOAT),
        epsilon=0.0,
    ),
    where=[
        lambda x, scaled, result: (
            x.dtype == _FLOAT
            and x.rank == 4
            and x.extent(1) is not None
            and not x.is_constant
            and x.same_shape(result)
            and scaled.is_single_use
        ),
        lambda x, c, d: per_channel(c, x, 1) and per_channel(d, x, 1),
        # a convolution behind it takes in both
        lambda d, result: (
            not d.has_one_element
            or not result.is_single_use
            or not all(user.is_made_by("Conv") and is_unpadded(user) for user in result.users)
        ),
    ],
    opset=(7, None),
    inexact=True,
    benefit=-1,  # where a sum with nothing goes, or a scale goes into a product, that is better
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    doc="x * c + d, with one number or one a channel, becomes a BatchNormalization. onnxruntime"
    " computes it in the memory layout of the convolutions around it.",
)

scale_plus_one = rule(
    op.Add(x, op.Mul(x, s).named("gated")) >> op.Mul(x, op.Add(s, constant(1.0, _FLOAT))),
    where=lambda x, s, gated, result: (
        x.dtype == _FLOAT
        and gated.is_single_use
        # a sum with s is small: its last axis is broadcast
        and s.rank == x.rank
        and s.shape[-1:] == (1,) != x.shape[-1:]
        and s.broadcasts_to(x)
        and x.same_shape(result)
    ),
    opset=(7, None),
    inexact=True,
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    doc="x + x * s is x * (s + 1). With one number a channel in s, the sum is then small.",
)
