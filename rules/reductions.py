"""Reductions and the size-1 axes that they leave."""

from __future__ import annotations

from onnxfold.rewrite import (
    Matched,
    axes,
    given,
    op,
    rule,
    single_use,
    values,
)

x, ys, zs = values("x *ys *zs")

_squeeze, _unsqueeze = op("Squeeze"), op("Unsqueeze")
# -------------------------------------------------------------------- reductions

_reduce = op.any_of(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)


@given
def _counts_axes(reduce: Matched, x: Matched) -> bool:
    """Onnxruntime leaves axes counted from the end alone where a tensor has no elements."""
    is_positive = x.facts.types.algebra.is_positive
    shape = x.facts.types.of(x.value).shape
    if shape is not None and all(map(is_positive, shape)):
        return True
    return all(axis >= 0 for axis in reduce.written_axes)


_keeping, _dropping = _reduce(x, *ys, keepdims=1), _reduce(x, *ys, keepdims=0)

squeeze_of_reduced = rule(
    _squeeze(_keeping, *zs) >> _reduce(x, *ys, keepdims=0),
    where=single_use(_keeping) & (axes(_squeeze) == axes(_reduce)) & _counts_axes(_reduce),
    doc="A reduction can drop the reduced axes itself.",
)

unsqueeze_of_reduced = rule(
    _unsqueeze(_dropping, *zs) >> _reduce(x, *ys, keepdims=1),
    where=single_use(_dropping) & (axes(_unsqueeze) == axes(_reduce)) & _counts_axes(_reduce),
    doc="A reduction can keep the reduced axes itself.",
)
