"""Normalizations, means and norms that exporters spell out, as the standard ops of the opset.

The ops sum in their own order: all rules here are for level 2, and the set is used only if it is
asked for, as a runtime may have no fast kernel for the younger ops.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxfold.rules.shapes import kept_axes, one_axis

from onnxfold.rewrite import (
    Matched,
    any_of,
    attributes,
    axes,
    constant,
    constants,
    dtype_of,
    filled,
    floating,
    given,
    has_one_output,
    known,
    number,
    op,
    rank_of,
    result,
    rule,
    same_dtype,
    same_shape,
    shape_of,
    values,
)

OPTIONAL = True

x, ys, zs = values("x *ys *zs")
w, b, c, s = constants("w b c s")
e, k, t = attributes("e k t")


@given
def _first_of_last(axes: tuple[int, ...], x: Matched) -> int | None:
    """The first of the axes, if they are the last ones of x."""
    return axes[0] if axes == tuple(range(axes[0], x.rank)) else None


@given
def _covers(vector: Matched, x: Matched, axis: int) -> bool:
    """The constant has one number for each element that is normalized."""
    return vector.shape == x.shape[axis:]


_eps = number(c)


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
_axis = _first_of_last(kept_axes(_mean, _variance), x)

layer_normalization = rule(
    op.Add(op.Mul(_normal, w), b) >> op.LayerNormalization(x, w, b, axis=_axis, epsilon=_eps),
    where=floating(x) & _covers(w, x, _axis) & _covers(b, x, _axis) & (_eps >= 0),
    opset=(17, None),
    benefit=1,
    inexact=True,
    doc="The mean is taken off, the variance divided by; then scale and bias.",
)

layer_normalization_without_bias = rule(
    op.Mul(_normal, w) >> op.LayerNormalization(x, w, axis=_axis, epsilon=_eps),
    where=floating(x) & _covers(w, x, _axis) & (_eps >= 0),
    opset=(17, None),
    inexact=True,
    doc="The mean is taken off, the variance divided by; then a scale.",
)

_layer = op("LayerNormalization")


_unbiased = _layer(x, w)

layer_normalization_bias = rule(
    op.Add(_unbiased, b) >> _layer(x, w, b),
    where=(shape_of(w) == shape_of(b)) & has_one_output(_unbiased),
    inexact=True,
    opset=(17, None),
    doc="A LayerNormalization without a bias gets one.",
)

# -------------------------------------------------------------------- root mean squares

_squares = op("ReduceMean")
_normed = _over(x, _root(_squares(_square(x), *ys)))
_rms_axis = _first_of_last(kept_axes(_squares), x)

rms_normalization = rule(
    op.Mul(_normed, w) >> op.RMSNormalization(x, w, axis=_rms_axis, epsilon=_eps),
    where=floating(x) & same_dtype(x, w) & _covers(w, x, _rms_axis) & (_eps >= 0),
    opset=(23, None),
    inexact=True,
    doc="x is divided by the root of the mean of its squares and scaled.",
)

_widened = op.Cast(x, to=int(ir.DataType.FLOAT))
_wide_squares = op("ReduceMean")
_wide_normed = _over(_widened, _root(_wide_squares(_square(_widened), *ys)))
_wide_axis = _first_of_last(kept_axes(_wide_squares), x)

rms_normalization_widened = rule(
    op.Mul(op.Cast(_wide_normed, to=t), w)
    >> op.RMSNormalization(x, w, axis=_wide_axis, epsilon=_eps),
    where=(dtype_of(x) == t) & same_dtype(x, w) & _covers(w, x, _wide_axis) & (_eps >= 0),
    opset=(23, None),
    inexact=True,
    doc="x is widened to float32, divided by the root of the mean of its squares, and scaled.",
)

# -------------------------------------------------------------------- groups

_instances = op.InstanceNormalization(op.Reshape(x, s), filled(1), filled(0), epsilon=e)


@given
def _groups(x: Matched, s: Matched) -> int | None:
    """How many groups the channels are cut into: x is reshaped to [batch, groups, rest]."""
    batch, channels = x.shape[:2]
    if len(s.ints) != 3 or x.rank < 3 or not isinstance(channels, int):
        return None
    kept, groups, rest = s.ints
    fits = kept in (0, batch) and rest == -1 and groups > 0 and channels % groups == 0
    return groups if fits else None


@given
def _is_one_per_channel(vector: Matched, x: Matched) -> bool:
    wanted = (x.shape[1], *(1 for _ in x.shape[2:]))
    return vector.shape in (wanted, (1, *wanted))


def _flat(variable: Any) -> Any:
    return op.Reshape(variable, constant([-1]))


group_normalization = [
    rule(
        op.Add(op.Mul(restored, w), b)
        >> op.GroupNormalization(x, _flat(w), _flat(b), num_groups=_groups, epsilon=e),
        where=known(_groups) & _is_one_per_channel(w, x) & _is_one_per_channel(b, x) & condition,
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


@given
def _terms(total: Matched, x: Matched) -> int:
    """How many elements each sum has."""
    return math.prod(x.sizes_of(total.axes))


mean = rule(
    op.Div(_total, c) >> op.ReduceMean(x, axes=axes(_total), keepdims=k),
    where=floating(x) & (rank_of(c) <= rank_of(_total)) & (number(c) == _terms(_total, x)),
    opset=(13, None),
    inexact=True,
    doc="A sum divided by its number of terms.",
)

norm = rule(
    op.Sqrt(op.ReduceSumSquare(x, *zs, keepdims=k)) >> op.ReduceL2(x, *zs, keepdims=k),
    where=floating(x),
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
_one_norm = one_axis(kept_axes(_l2))

normalize = rule(
    op.Div(x, _l2(x, *zs)) >> op.LpNormalization(x, axis=_one_norm, p=2),
    where=known(_one_norm),
    inexact=True,
    doc="x divided by its Euclidean norm along one axis, where that is not zero.",
)
