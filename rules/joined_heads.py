"""Products of attention whose batch and heads are one axis, brought apart (target "onnxruntime").

Exporters of models that multiply matrices in batches of one axis reshape to it and back; the rules
of attention look for the heads on an axis of their own.
"""

from __future__ import annotations

from typing import Any

from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite import (
    Matched,
    attributes,
    given,
    op,
    result,
    rule,
    same_shape,
    shape_of,
    single_use,
    values,
)

x, y, sizes, more_sizes, bias, apart = values("x y sizes more_sizes bias apart")
alpha = attributes("alpha")

_ms = op.domain("com.microsoft")

# with whatever attributes
_join, _join_too, _part = (op.any_of("Reshape") for _ in range(3))
_left, _right = _join(x, sizes), _join_too(y, more_sizes)


@given
def _is_joined(joined: Matched, value: Matched) -> bool:
    """[batch, heads, rows, columns] became [batch * heads, rows, columns]."""
    return value.rank == 4 and joined.rank == 3 and joined.shape[1:] == value.shape[2:]


@given
def _product_shape(x: Matched, y: Matched, axis: int) -> Shape | None:
    """What comes out of the product of both as they were, if they have the same batch and heads."""
    return (*x.shape[:3], y.shape[axis]) if x.shape[:2] == y.shape[:2] else None


_products = (
    (op.MatMul(_left, _right), op.MatMul(x, y), -1),
    *(
        (
            _ms.FusedMatMul(_left, _right, alpha=alpha, transA=0, transB=turned),
            _ms.FusedMatMul(x, y, alpha=alpha, transA=0, transB=turned),
            -2 if turned else -1,
        )
        for turned in (0, 1)
    ),
)


def _are_joined(product: Any, axis: int) -> Any:
    """The result is the product with batch and heads apart, and nothing else reads the product."""
    return (
        _is_joined(_left, x)
        & _is_joined(_right, y)
        & (shape_of(result) == _product_shape(x, y, axis))
        & single_use(product)
    )


product_of_heads = [
    rule(
        _part(product, apart) >> brought_apart,
        where=_are_joined(product, axis),
        inexact=True,
        target="onnxruntime",
        doc="A product of matrices needs no batch and heads in one axis.",
        seen_in="torch/deberta_v2",
    )
    for product, brought_apart, axis in _products
]

biased_product_of_heads = [
    rule(
        _part(biased, apart) >> op.Add(brought_apart, _part(bias, apart)),
        where=_are_joined(product, axis) & same_shape(product, bias) & single_use(biased),
        inexact=True,
        target="onnxruntime",
        doc="What is added to a product of matrices is brought apart instead of their sum.",
        seen_in="torch/deberta_v2",
    )
    for product, brought_apart, axis in _products
    for biased in (op.Add(product, bias),)
]
