"""Reductions and the size-1 axes that they leave."""

from __future__ import annotations

from onnxfold.rules.shapes import axes_of, normal

from onnxfold.rewrite import op, rule, single_use, values
from onnxfold.rewrite.match import Match

x, ys, zs = values("x *ys *zs")

_squeeze, _unsqueeze = op("Squeeze"), op("Unsqueeze")
# -------------------------------------------------------------------- reductions

_reduce = op.any_of(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)


def _reduced_axes(match: Match) -> tuple[int, ...] | None:
    node, rank = match.node(_reduce), match.rank(x)
    if node.op_type in ("ArgMax", "ArgMin"):
        return normal([match.attribute(_reduce, "axis")], rank)
    return axes_of(match, node, rank)


def _counts_axes(match: Match) -> bool:
    """Onnxruntime leaves axes counted from the end alone where a tensor has no elements."""
    node, shape = match.node(_reduce), match.shape(x)
    algebra = match.facts.types.algebra
    if shape is not None and all(algebra.is_positive(size) for size in shape):
        return True
    if node.op_type in ("ArgMax", "ArgMin"):
        return bool(match.attribute(_reduce, "axis") >= 0)
    written = node.attributes.get("axes")
    given = written.value if written is not None else match.array(node.inputs[1])
    return all(int(axis) >= 0 for axis in given)


def _squeezes_reduced(match: Match) -> bool:
    reduced = _reduced_axes(match)
    return reduced is not None and reduced == axes_of(match, match.node(_squeeze), match.rank(x))


def _restores_reduced(match: Match) -> bool:
    reduced = _reduced_axes(match)
    return reduced is not None and reduced == axes_of(match, match.node(_unsqueeze), match.rank(x))


_keeping, _dropping = _reduce(x, *ys, keepdims=1), _reduce(x, *ys, keepdims=0)

squeeze_of_reduced = rule(
    _squeeze(_keeping, *zs) >> _reduce(x, *ys, keepdims=0),
    where=single_use(_keeping) & _squeezes_reduced & _counts_axes,
    doc="A reduction can drop the reduced axes itself.",
)

unsqueeze_of_reduced = rule(
    _unsqueeze(_dropping, *zs) >> _reduce(x, *ys, keepdims=1),
    where=single_use(_dropping) & _restores_reduced & _counts_axes,
    doc="A reduction can keep the reduced axes itself.",
)
