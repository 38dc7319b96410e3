"""Minima, maxima and what is made of them: Clip, Relu.

On onnxruntime, which all rules here agree with bit for bit: Clip is ``min(max(x, low), high)``,
also where low > high; a NaN stays a NaN; -0.0 stays where the bound is 0.0; a bound that is not
given is the largest finite number, so that an infinity does not pass. Relu differs in the last:
infinity stays. Max and Min of 0.0 and -0.0 may give either. For int64 none of it holds always: see
`well_ordered`.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from onnxfold.rules.elementwise import well_ordered

from onnxfold.rewrite import (
    Matched,
    broadcasts_to,
    clamp,
    constant,
    constants,
    dtype_of,
    floating,
    given,
    highest,
    integer,
    known,
    lowest,
    number,
    op,
    optional,
    result,
    rule,
    same_shape,
    single_use,
    values,
)

x, y = values("x y")
low, high, low2, high2, c, d = constants("low high low2 high2 c d")


# -------------------------------------------------------------------- bounds

_HALF_KERNELS = 12
"""From this opset on, onnxruntime has a Clip of half precision."""


@given
def _bound(x: Matched, limit: Any, bound: Matched | None = None) -> Any:
    """A bound of a Clip of x; where none is given, the largest finite number is one."""
    if bound is not None:
        return bound.number
    # before, onnxruntime computes it in float32, and leaves an infinity
    return limit if x.opset >= _HALF_KERNELS or x.dtype.bitwidth != 16 else None


_first = _bound(x, lowest(x), low), _bound(x, highest(x), high)
_second = _bound(x, lowest(x), low2), _bound(x, highest(x), high2)
_positive = 0, math.inf
"""What Relu leaves."""


def _merged(inner: Any, outer: Any) -> tuple[Any, Any]:
    """The bounds of a Clip that does what two do, one after the other."""
    return clamp(inner[0], *outer), clamp(inner[1], *outer)


def _in_order(*clips: tuple[Any, Any]) -> Any:
    """No bounds are crossed or NaN, and the last ones not both 0.

    Where they are, a zero that comes out as the bound may keep its own sign.
    """
    both_zero = (clips[-1][0] == 0) & (clips[-1][1] == 0)
    return functools.reduce(operator.and_, (low <= high for low, high in clips)) & ~both_zero


def _clip(bounds: tuple[Any, Any]) -> Any:
    return op.Clip(x, *(constant(bound, dtype_of(x)) for bound in bounds))


@given
def _is_bounded(
    low: Matched | None = None,
    high: Matched | None = None,
    low2: Matched | None = None,
    high2: Matched | None = None,
) -> bool:
    """Without any bound, what onnxruntime makes of a Clip takes dtypes that others do not."""
    return any(bound is not None for bound in (low, high, low2, high2))


@given
def _no_zero(*constants: Matched) -> bool:
    """The constants are integers, or none of their elements is a zero or a NaN."""
    arrays = [c.array for c in constants]
    return all(a.dtype.kind in "iu" or bool(((a < 0) | (a > 0)).all()) for a in arrays)


@given
def _is_positive(c: Matched) -> bool:
    return bool((c.array > 0).all())


# -------------------------------------------------------------------- clips of clips

_inner_clip = op.Clip(x, optional(low), optional(high))
_outer_clip = op.Clip(_inner_clip, optional(low2), optional(high2))

_both = _merged(_first, _second)

clip_of_clip = rule(
    _outer_clip >> _clip(_both),
    opset=(11, None),
    where=_in_order(_first, _second, _both)
    & _is_bounded
    & single_use(_inner_clip)
    & well_ordered(x),
    doc="One Clip with the narrower bounds.",
)

_at_least_zero = _merged(_first, _positive)

relu_of_clip = rule(
    op.Relu(_inner_clip) >> _clip(_at_least_zero),
    opset=(11, None),
    where=_in_order(_first, _at_least_zero) & single_use(_inner_clip) & well_ordered(x),
    doc="One Clip whose lower bound is at least 0.",
)

_relu = op.Relu(x)
_above_zero = _merged(_positive, _first)

clip_of_relu = rule(
    op.Clip(_relu, optional(low), optional(high)) >> _clip(_above_zero),
    opset=(11, None),
    where=_in_order(_first, _above_zero) & single_use(_relu) & well_ordered(x),
    doc="One Clip whose bounds are at least 0.",
)

clip_nothing = rule(
    op.Clip(x) >> x,
    where=integer(x) & well_ordered(x),
    doc="An integer without bounds; a float loses its infinities.",
)

_not_negative = op.any_of("Relu", "Abs", "Sqrt", "Exp")(x)

relu_of_not_negative = rule(
    op.Relu(_not_negative) >> _not_negative,
    where=floating(x),
    doc="Relu of what is not below 0, or not a number; an integer may have no absolute value.",
)

# -------------------------------------------------------------------- maxima and minima

_extreme = op.any_of("Max", "Min")

extreme_with_itself = rule(
    _extreme(x, x) >> x,
    doc="The larger, or smaller, of x and x is x.",
)

_with_c = _extreme(x, c)

extreme_of_extreme = rule(
    _extreme(_with_c, d) >> _extreme(x, _extreme(c, d)),
    where=single_use(_with_c)
    & (broadcasts_to(c, d) | broadcasts_to(d, c))
    & _no_zero(c, d)
    & well_ordered(x),
    doc="Two constants: the larger, or smaller, of them decides.",
)

extreme_again = rule(
    _extreme(x, _extreme(x, y)) >> _extreme(x, y),
    where=integer(x) & well_ordered(x),
    doc="max(x, max(x, y)) is max(x, y).",
)

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
)

min_of_relu = rule(
    op.Min(_relu, high) >> op.Clip(x, constant(0, like=x), constant(number(high), dtype_of(x))),
    where=same_shape(x, result)
    & single_use(_relu)
    & known(number(high))
    & _no_zero(high)
    & well_ordered(x),
    opset=(12, None),
    doc="Relu6 and its kind is a Clip.",
)

max_of_relu = rule(
    op.Max(_relu, low) >> op.Max(x, low),
    where=_is_positive(low) & well_ordered(x),
    doc="What is not less than something positive is not negative.",
)
