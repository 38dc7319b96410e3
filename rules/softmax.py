"""Softmax and its logarithm, spelled out by exporters, as the standard ops.

The ops round their own way: all rules here are for level 2, and the set is used only if it is
asked for.
"""

from __future__ import annotations

from onnxfold.rules.shapes import kept_axes, one_axis

from onnxfold.rewrite import (
    attributes,
    known,
    op,
    rule,
    values,
)

OPTIONAL = True

x, ys, zs = values("x *ys *zs")
a = attributes("a")

_sum, _max, _log_sum_exp = op("ReduceSum"), op("ReduceMax"), op("ReduceLogSumExp")
_summed, _log_summed = one_axis(kept_axes(_sum)), one_axis(kept_axes(_log_sum_exp))
_shifted_and_summed = one_axis(kept_axes(_sum, _max))

_exp = op.Exp(x)
_shifted = op.Exp(op.Sub(x, _max(x, *zs)))

softmax = rule(
    op.Div(_exp, _sum(_exp, *zs)) >> op.Softmax(x, axis=_summed),
    where=known(_summed),
    opset=(13, None),
    inexact=True,
    doc="exp(x) / sum(exp(x)) along one axis; without its overflow.",
)

softmax_shifted = rule(
    op.Div(_shifted, _sum(_shifted, *ys)) >> op.Softmax(x, axis=_shifted_and_summed),
    where=known(_shifted_and_summed),
    opset=(13, None),
    inexact=True,
    doc="exp(x - max(x)) / sum(exp(x - max(x))) along one axis.",
)

log_softmax = rule(
    op.Log(op.Softmax(x, axis=a)) >> op.LogSoftmax(x, axis=a),
    inexact=True,
    doc="log(softmax(x)): where softmax is 0, a finite number instead of -infinity.",
)

log_softmax_by_sum = rule(
    op.Sub(x, _log_sum_exp(x, *zs)) >> op.LogSoftmax(x, axis=_log_summed),
    where=known(_log_summed),
    opset=(13, None),
    inexact=True,
    doc="x - log(sum(exp(x))) along one axis.",
)
