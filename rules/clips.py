"""Minima, maxima and what is made of them: Clip, Relu.

On onnxruntime, which all rules here agree with bit for bit: Clip is ``min(max(x, low), high)``,
also where low > high; a NaN stays a NaN; -0.0 stays where the bound is 0.0; a bound that is not
given is the largest finite number, so that an infinity does not pass. Relu differs in the last:
infinity stays. Max and Min of 0.0 and -0.0 may give either. For int64 none of it holds always: see
`well_ordered`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from onnxfold.rules.elementwise import well_ordered

from onnxfold.rewrite import (
    broadcasts_to,
    computed,
    constant,
    constants,
    dtype_of,
    floating,
    integer,
    op,
    optional,
    result,
    rule,
    same_shape,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.predicates import as_predicate

x, y = values("x y")
low, high, low2, high2, c, d = constants("low high low2 high2 c d")


# -------------------------------------------------------------------- terms and conditions

_Bounds = tuple[Any, Any]
_HALF_KERNELS = 12
"""From this opset on, onnxruntime has a Clip of half precision."""


def _finite_bounds(match: Match) -> _Bounds | None:
    dtype = match.dtype(x)
    if dtype is None or not (dtype.is_integer() or dtype.is_floating_point()):
        return None
    numpy = dtype.numpy()
    find: Any = np.iinfo if numpy.kind in "iu" else ml_dtypes.finfo
    info = find(numpy)
    return numpy.type(info.min), numpy.type(info.max)


def _bounds(match: Match, given: tuple[Any, Any]) -> _Bounds | None:
    """Both bounds of a Clip; None if one is not a number or they are crossed."""
    limits = _finite_bounds(match)
    if limits is None:
        return None
    found = []
    for variable, limit in zip(given, limits, strict=True):
        value = match[variable]
        if value is None and match.opset < _HALF_KERNELS and limit.dtype.itemsize == 2:
            return None  # onnxruntime computes it in float32, and leaves an infinity
        array = limit if value is None else match.array(value)
        if array is None or np.size(array) != 1:
            return None
        found.append(np.asarray(array).reshape(())[()])
    smallest, largest = found
    # a NaN fails, too
    return (smallest, largest) if smallest <= largest else None


def _relu_bounds(match: Match) -> _Bounds | None:
    dtype = match.dtype(x)
    return None if dtype is None else (dtype.numpy().type(0), None)


def _clipped(number: Any, bounds: _Bounds) -> Any:
    """A number clipped as onnxruntime does it; None is infinite."""
    smallest, largest = bounds
    number = smallest if smallest is not None and number < smallest else number
    return largest if largest is not None and largest < number else number


def _both(inner: _Bounds | None, outer: _Bounds | None) -> _Bounds | None:
    """The bounds of two clips, one after the other."""
    if inner is None or outer is None:
        return None
    smallest = _clipped(inner[0], outer)
    largest = outer[1] if inner[1] is None else _clipped(inner[1], outer)
    # where both are 0, a zero that came out as the bound would keep its own sign
    return None if smallest == largest == 0 else (smallest, largest)


_Find = Callable[[Match], _Bounds | None]


def _first_clip(match: Match) -> _Bounds | None:
    return _bounds(match, (low, high))


def _second_clip(match: Match) -> _Bounds | None:
    return _bounds(match, (low2, high2))


def _some_bound(match: Match) -> bool:
    """Without any bound, what onnxruntime makes of a Clip takes dtypes that others do not."""
    return any(match[variable] is not None for variable in (low, high, low2, high2))


def _clip(inner: _Find, outer: _Find) -> Any:
    """A Clip that does what two clips do."""

    def bound(k: int) -> Any:
        def term(match: Match) -> Any:
            both = _both(inner(match), outer(match))
            return None if both is None or both[k] is None else np.asarray(both[k])

        return constant(computed(term), dtype_of(x))

    return op.Clip(x, bound(0), bound(1))


def _elements(match: Match, *variables: Any) -> list[Any] | None:
    arrays = [match.array(variable) for variable in variables]
    return None if any(a is None for a in arrays) else arrays


def _no_zero(*variables: Any) -> Callable[[Match], bool]:
    """The constants are integers, or none of their elements is a zero or a NaN."""

    def no_zero(match: Match) -> bool:
        arrays = _elements(match, *variables)
        return arrays is not None and all(
            a.dtype.kind in "iu" or bool(((a < 0) | (a > 0)).all()) for a in arrays
        )

    return no_zero


def _some_zero(match: Match) -> bool:
    return not _no_zero(low, high)(match)


def _one_element(*variables: Any) -> Callable[[Match], bool]:
    def one_element(match: Match) -> bool:
        arrays = _elements(match, *variables)
        return arrays is not None and all(a.size == 1 for a in arrays)

    return one_element


def _not_crossed(match: Match) -> bool:
    arrays = _elements(match, low, high)
    return arrays is not None and bool((arrays[0] <= arrays[1]).all())


def _scalar(variable: Any) -> Any:
    return constant(
        computed(lambda m: None if m.array(variable) is None else m.array(variable).reshape(())),
        dtype_of(x),
    )


def _zero() -> Any:
    return constant(0, like=x)


# -------------------------------------------------------------------- clips of clips

_inner_clip = op.Clip(x, optional(low), optional(high))
_outer_clip = op.Clip(_inner_clip, optional(low2), optional(high2))

clip_of_clip = rule(
    _outer_clip >> _clip(_first_clip, _second_clip),
    opset=(11, None),
    where=as_predicate(_some_bound) & single_use(_inner_clip) & well_ordered(x),
    doc="One Clip with the narrower bounds.",
)

relu_of_clip = rule(
    op.Relu(_inner_clip) >> _clip(_first_clip, _relu_bounds),
    opset=(11, None),
    where=single_use(_inner_clip) & well_ordered(x),
    doc="One Clip whose lower bound is at least 0.",
)

_relu = op.Relu(x)

clip_of_relu = rule(
    op.Clip(_relu, optional(low), optional(high)) >> _clip(_relu_bounds, _first_clip),
    opset=(11, None),
    where=single_use(_relu) & well_ordered(x),
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
    op.Min(_above, high) >> op.Clip(x, _scalar(low), _scalar(high)),
    where=same_shape(x, result) & single_use(_above) & _one_element(low, high) & well_ordered(x),
    inexact=_some_zero,
    opset=(12, None),
    doc="First not less, then not more: Clip, also with crossed bounds. It may keep -0.0.",
)

_below = op.Min(x, high)

max_of_min = rule(
    op.Max(_below, low) >> op.Clip(x, _scalar(low), _scalar(high)),
    where=same_shape(x, result)
    & single_use(_below)
    & _one_element(low, high)
    & _not_crossed
    & well_ordered(x),
    inexact=_some_zero,
    opset=(12, None),
    doc="First not more, then not less: Clip, unless the bounds are crossed. It may keep -0.0.",
)

min_of_relu = rule(
    op.Min(_relu, high) >> op.Clip(x, _zero(), _scalar(high)),
    where=same_shape(x, result)
    & single_use(_relu)
    & _one_element(high)
    & _no_zero(high)
    & well_ordered(x),
    opset=(12, None),
    doc="Relu6 and its kind is a Clip.",
)


def _not_below_zero(match: Match) -> bool:
    arrays = _elements(match, low)
    return arrays is not None and bool((arrays[0] > 0).all())


max_of_relu = rule(
    op.Max(_relu, low) >> op.Max(x, low),
    where=_not_below_zero & well_ordered(x),
    doc="What is not less than something positive is not negative.",
)
