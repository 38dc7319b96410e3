"""Scales and shifts: what two passes over memory do, one does.

A sum or a product is rounded elsewhere then, so the rules here are for level 2.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxfold.rules.convolutions import is_unpadded
from onnxfold.rules.weights import per_channel, spread

from onnxfold.onnx_ir_private import uses
from onnxfold.rewrite import (
    Matched,
    broadcasts_to,
    constant,
    constants,
    dtype_of,
    given,
    is_constant,
    is_scalar_like,
    known,
    op,
    rank_of,
    result,
    rule,
    same_shape,
    single_use,
    values,
)

x, s = values("x s")
c, d = constants("c d")

_FLOAT = ir.DataType.FLOAT

# -------------------------------------------------------------------- a scale and a shift


@given
def _channels(x: Matched) -> int | None:
    size = x.shape[1]
    return size if isinstance(size, int) else None


@given
def _goes_into_weight(total: Matched) -> bool:
    """The only user is a convolution that takes both the scale and the shift (`convolutions`)."""
    if not total.is_single_use:
        return False
    (use,) = uses(total.value)
    return use.node.op_type == "Conv" and is_unpadded(Matched(use.node.outputs[0], total.facts))


_scaled = op.Mul(x, c)


def _vector(value: Any) -> Any:
    return spread(value, _channels(x))


@given
def _repeated(number: float, times: int) -> tuple[float, ...]:
    return (number,) * times


def _all(number: float) -> Any:
    return constant(_repeated(number, _channels(x)), _FLOAT)


scale_and_shift = rule(
    op.Add(_scaled, d)
    >> op.BatchNormalization(x, _vector(c), _vector(d), _all(0.0), _all(1.0), epsilon=0.0),
    where=(dtype_of(x) == _FLOAT)
    & (rank_of(x) == 4)
    & ~is_constant(x)
    & same_shape(x, result)
    & known(_channels(x))
    & per_channel(c, x, 1, 4)
    & per_channel(d, x, 1, 4)
    & single_use(_scaled)
    & ~(is_scalar_like(d) & _goes_into_weight(result)),
    opset=(7, None),
    inexact=True,
    benefit=-1,  # where a sum with nothing goes, or a scale goes into a product, that is better
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    doc="x * c + d with one number a channel or one for all, as in PP-LCNetV3, is a"
    " BatchNormalization: onnxruntime computes it in the layout of the convolutions around it.",
)

# -------------------------------------------------------------------- a scale, and one more


@given
def _is_fewer(s: Matched, x: Matched) -> bool:
    """At least one axis of x is broadcast: a sum with s is small."""
    return s.rank == x.rank and s.shape[-1] == 1 and x.shape[-1] != 1


_gated = op.Mul(x, s)

scale_plus_one = rule(
    op.Add(x, _gated) >> op.Mul(x, op.Add(s, constant(1.0, _FLOAT))),
    where=(dtype_of(x) == _FLOAT)
    & single_use(_gated)
    & broadcasts_to(s, x)
    & _is_fewer(s, x)
    & same_shape(x, result),
    opset=(7, None),
    inexact=True,
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    doc="x + x * s is x * (s + 1), where s has one number a channel: the squeeze-and-excitation of"
    " PP-OCR's detectors.",
)
