"""Activations that exporters spell out, as the ops with the fewest passes over memory.

They are standard ops of which onnxruntime's CPU provider has kernels. Every one of them rounds its
own way, so all rules here are for level 2.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxfold.rewrite import Matched, any_of, filled, near, op, rule, values
from onnxfold.rewrite.patterns import Expression

x = values("x")


def is_spelled_out(x: Matched, result: Matched) -> bool:
    """Return whether a float32 tensor goes through an activation.

    onnxruntime has no kernels of most of the ops for double, and casts where they are float16.
    """
    return x.dtype == ir.DataType.FLOAT and x.same_shape(result)


# -------------------------------------------------------------------- Gelu


def _times_half(factor: Expression) -> Expression:
    """Half of ``x * factor``, in any order."""
    half = filled(0.5)
    return any_of(
        op.Mul(op.Mul(x, factor), half),
        op.Mul(x, op.Mul(factor, half)),
        op.Mul(op.Mul(x, half), factor),
    )


_root = math.sqrt(2)
_by_root = any_of(op.Div(x, near(_root)), op.Mul(x, near(1 / _root)))

gelu_by_erf = _times_half(op.Add(op.Erf(_by_root), filled(1)))
"""x * (1 + erf(x / sqrt(2))) / 2"""

_cubes = any_of(op.Pow(x, filled(3)), op.Mul(op.Mul(x, x), x))
_third, _outer = near(0.044715), near(math.sqrt(2 / math.pi))
_cubic = any_of(
    op.Mul(op.Add(x, op.Mul(_cubes, _third)), _outer),
    op.Mul(op.Mul(x, _outer), op.Add(op.Mul(op.Mul(x, x), _third), filled(1))),
    op.Mul(op.Mul(x, _outer), op.Add(op.Mul(op.Mul(x, _third), x), filled(1))),
)

gelu_by_tanh = _times_half(op.Add(op.Tanh(_cubic), filled(1)))
"""x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2"""

gelu_tanh = rule(
    gelu_by_tanh >> op.Gelu(x, approximate="tanh"),
    where=is_spelled_out,
    opset=(20, None),
    inexact=True,
    doc="The ops of Gelu's tanh approximation, as in transformers' GPT-2, become one Gelu.",
    seen_in="torch/gelu_new",
)

# -------------------------------------------------------------------- hard sigmoid and swish

_sum = op.Add(x, filled(3))
_clipped = (
    (op.Clip(_sum, filled(0), filled(6)), (11, None)),
    (op.Clip(_sum, min=0.0, max=6.0), (6, 10)),
)
"""min(max(x + 3, 0), 6), and the opsets that spell it so."""

_sixth = 1 / 6
_hard_sigmoid = op.HardSigmoid(x, alpha=_sixth, beta=0.5)


def _by_six(value: Expression) -> Expression:
    return any_of(op.Div(value, filled(6)), op.Mul(value, near(_sixth)))


hard_sigmoid = [
    rule(
        _by_six(clipped) >> _hard_sigmoid,
        where=is_spelled_out,
        opset=opset,
        inexact=True,
        benefit=1,
        doc="min(max(x + 3, 0), 6) / 6, as in Keras' MobileNetV3, is HardSigmoid.",
        seen_in="tf2onnx/hard_sigmoid",
    )
    for clipped, opset in _clipped
]

hard_swish = [
    rule(
        _by_six(op.Mul(x, clipped)) >> op.Mul(x, _hard_sigmoid),
        where=is_spelled_out,
        opset=opset,
        inexact=True,
        # before the sixth goes into the weight of the next convolution
        benefit=1,
        doc="x * min(max(x + 3, 0), 6) / 6, as in PaddlePaddle, is x * HardSigmoid(x): two ops, not"
        " four. onnxruntime fuses both into a convolution.",
        seen_in="rapidocr/ch_ppocr_mobile_v2.0_cls_mobile",
    )
    for clipped, opset in _clipped
]
