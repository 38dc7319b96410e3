"""Normalizations, means and norms that exporters spell out, as the standard ops of the opset.

The ops sum in their own order: all rules here are for level 2, and the set is used only if it is
asked for, as a runtime may have no fast kernel for the younger ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxfold.rules.numbers import number
from onnxfold.rules.shapes import axes_of, one_axis

from onnxfold.rewrite import (
    any_of,
    attributes,
    computed,
    constant,
    constants,
    dtype_of,
    filled,
    floating,
    op,
    result,
    rule,
    same_dtype,
    same_shape,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.predicates import as_predicate

OPTIONAL = True

x, ys, zs = values("x *ys *zs")
w, b, c, s = constants("w b c s")
e, k, t = attributes("e k t")


def _last_axes(*reductions: Any, of: Any = x) -> Callable[[Match], int | None]:
    """The first axis, counted from the front, of the last ones that all reductions keep as 1."""

    def last_axes(match: Match) -> int | None:
        rank = match.rank(of)
        if rank is None:
            return None
        for reduction in reductions:
            axes = axes_of(match, match.node(reduction), rank)
            keeps = match.attribute(reduction, "keepdims") == 1
            if not axes or not keeps or axes != tuple(range(axes[0], rank)):
                return None
        found = {axes_of(match, match.node(r), rank) for r in reductions}
        return None if len(found) != 1 else rank - len(found.pop() or ())

    return last_axes


def _covers(variable: Any, axis: Callable[[Match], int | None]) -> Callable[[Match], bool]:
    """The constant has one number for each element that is normalized."""

    def covers(match: Match) -> bool:
        first, shape = axis(match), match.shape(x)
        if first is None or shape is None:
            return False
        return match.shape(variable) == shape[first:]

    return covers


def _epsilon(match: Match) -> float | None:
    found = number(match, c)
    return found if found is not None and found >= 0 else None


def _has_epsilon(match: Match) -> bool:
    return _epsilon(match) is not None


_eps = computed(_epsilon)


def _root(variance: Any) -> Any:
    return op.Sqrt(op.Add(variance, c))


def _over(dividend: Any, root: Any) -> Any:
    """A quotient, however it is written."""
    return any_of(
        op.Div(dividend, root),
        op.Mul(dividend, op.Reciprocal(root)),
        op.Mul(dividend, op.Div(filled(1), root)),
    )


def _square(of: Any) -> Any:
    return any_of(op.Pow(of, filled(2)), op.Mul(of, of))


# -------------------------------------------------------------------- layer normalization

_mean, _variance = op("ReduceMean"), op("ReduceMean")
_centred = op.Sub(x, _mean(x, *ys))
_normal = _over(_centred, _root(_variance(_square(_centred), *zs)))
_layer_axis = _last_axes(_mean, _variance)
_first_layer_axis = computed(_layer_axis)

layer_normalization = rule(
    op.Add(op.Mul(_normal, w), b)
    >> op.LayerNormalization(x, w, b, axis=_first_layer_axis, epsilon=_eps),
    where=floating(x)
    & as_predicate(_covers(w, _layer_axis))
    & _covers(b, _layer_axis)
    & _has_epsilon,
    opset=(17, None),
    benefit=1,
    inexact=True,
    doc="The mean is taken off, the variance divided by; then scale and bias.",
)

layer_normalization_without_bias = rule(
    op.Mul(_normal, w) >> op.LayerNormalization(x, w, axis=_first_layer_axis, epsilon=_eps),
    where=floating(x) & _covers(w, _layer_axis) & _has_epsilon,
    opset=(17, None),
    inexact=True,
    doc="The mean is taken off, the variance divided by; then a scale.",
)

_layer = op("LayerNormalization")


def _one_output(match: Match) -> bool:
    return sum(bool(v.name) for v in match.node(_layer).outputs) == 1


def _bias_of_layer(match: Match) -> bool:
    shape, given = match.shape(w), match.shape(b)
    return shape is not None and shape == given


layer_normalization_bias = rule(
    op.Add(_layer(x, w), b) >> _layer(x, w, b),
    where=as_predicate(_bias_of_layer) & _one_output,
    inexact=True,
    opset=(17, None),
    doc="A LayerNormalization without a bias gets one.",
)

# -------------------------------------------------------------------- root mean squares

_squares = op("ReduceMean")
_normed = _over(x, _root(_squares(_square(x), *ys)))
_rms_axis = _last_axes(_squares)

rms_normalization = rule(
    op.Mul(_normed, w) >> op.RMSNormalization(x, w, axis=computed(_rms_axis), epsilon=_eps),
    where=floating(x) & same_dtype(x, w) & _covers(w, _rms_axis) & _has_epsilon,
    opset=(23, None),
    inexact=True,
    doc="x is divided by the root of the mean of its squares and scaled.",
)

_widened = op.Cast(x, to=int(ir.DataType.FLOAT))
_wide_squares = op("ReduceMean")
_wide_normed = _over(_widened, _root(_wide_squares(_square(_widened), *ys)))
_wide_axis = _last_axes(_wide_squares)

rms_normalization_widened = rule(
    op.Mul(op.Cast(_wide_normed, to=t), w)
    >> op.RMSNormalization(x, w, axis=computed(_wide_axis), epsilon=_eps),
    where=(dtype_of(x) == t) & same_dtype(x, w) & _covers(w, _wide_axis) & _has_epsilon,
    opset=(23, None),
    inexact=True,
    doc="x is widened to float32, divided by the root of the mean of its squares, and scaled.",
)

# -------------------------------------------------------------------- groups

_instances = op.InstanceNormalization(op.Reshape(x, s), filled(1), filled(0), epsilon=e)


def _groups(match: Match) -> int | None:
    """How many groups the channels are cut into: x is reshaped to [batch, groups, rest]."""
    sizes, shape = match.array(s), match.shape(x)
    if sizes is None or shape is None or len(shape) < 3:
        return None
    told = [int(v) for v in sizes]
    channels = shape[1]
    if len(told) != 3 or told[2] != -1 or told[1] < 1 or not isinstance(channels, int):
        return None
    if not (told[0] == 0 or told[0] == shape[0]) or channels % told[1]:
        return None
    return told[1]


def _one_per_channel(*variables: Any) -> Callable[[Match], bool]:
    def one_per_channel(match: Match) -> bool:
        shape = match.shape(x)
        if shape is None or _groups(match) is None:
            return False
        rest = (1,) * (len(shape) - 2)
        wanted = ((shape[1], *rest), (1, shape[1], *rest))
        return all(match.shape(variable) in wanted for variable in variables)

    return one_per_channel


def _flat(variable: Any) -> Any:
    return op.Reshape(variable, constant([-1]))


group_normalization = [
    rule(
        op.Add(op.Mul(restored, w), b)
        >> op.GroupNormalization(x, _flat(w), _flat(b), num_groups=computed(_groups), epsilon=e),
        where=as_predicate(_one_per_channel(w, b)) & condition,
        opset=(21, None),
        inexact=True,
        doc="InstanceNormalization of groups of channels; then scale and bias.",
    )
    for restored, condition in (
        (op.Reshape(_instances, op.Shape(x)), floating(x)),
        (op.Reshape(_instances, c), same_shape(x, result)),
    )
]

# -------------------------------------------------------------------- means and norms

_total = op.ReduceSum(x, *zs, keepdims=k)


def _reduced(match: Match) -> tuple[int, ...] | None:
    return axes_of(match, match.node(_total), match.rank(x))


def _is_number_of_terms(match: Match) -> bool:
    """The constant is how many elements each sum has, and does not change its shape."""
    shape, axes, rank = match.shape(x), _reduced(match), match.rank(_total)
    if shape is None or not axes or rank is None or (match.rank(c) or 0) > rank:
        return False
    sizes = [shape[axis] for axis in axes]
    terms = math.prod(size for size in sizes if isinstance(size, int))
    return all(isinstance(size, int) for size in sizes) and number(match, c) == terms


mean = [
    rule(
        op.Div(_total, c) >> replacement,
        where=floating(x) & _is_number_of_terms,
        opset=versions,
        inexact=True,
        doc="A sum divided by its number of terms.",
    )
    for replacement, versions in (
        (op.ReduceMean(x, axes=computed(_reduced), keepdims=k), (13, 17)),
        (op.ReduceMean(x, *zs, keepdims=k), (18, None)),
    )
]

_square_sum = op("ReduceSumSquare")

norm = rule(
    op.Sqrt(_square_sum(x, *zs, keepdims=k)) >> op.ReduceL2(x, *zs, keepdims=k),
    where=floating(x) & (lambda m: "axes" not in m.node(_square_sum).attributes),
    opset=(18, None),
    inexact=True,
    doc="The root of a sum of squares.",
)

norm_of_squares = rule(
    op.Sqrt(op.ReduceSum(_square(x), *zs, keepdims=k)) >> op.ReduceL2(x, *zs, keepdims=k),
    where=floating(x),
    opset=(18, None),
    inexact=True,
    doc="The root of a sum of squares.",
)

_l2 = op("ReduceL2")
_one_norm = one_axis(x, _l2)

normalize = rule(
    op.Div(x, _l2(x, *zs)) >> op.LpNormalization(x, axis=computed(_one_norm), p=2),
    where=lambda m: _one_norm(m) is not None,
    inexact=True,
    doc="x divided by its Euclidean norm along one axis, where that is not zero.",
)
