"""Products of attention whose batch and heads are one axis, brought apart (target "onnxruntime").

Exporters of models that multiply matrices in batches of one axis reshape to it and back; the rules
of attention look for the heads on an axis of their own.
"""

from __future__ import annotations

from onnxfold.rewrite import Matched, attributes, op, rule, values

x, y, sizes, more_sizes, bias, apart = values("x y sizes more_sizes bias apart")
alpha = attributes("alpha")

_ms = op.domain("com.microsoft")

# with whatever attributes
_join, _join_too, _part = (op.any_of("Reshape") for _ in range(3))
_left, _right = _join(x, sizes).named("left"), _join_too(y, more_sizes).named("right")


def _are_joined(
    x: Matched, y: Matched, left: Matched, right: Matched, product: Matched, result: Matched
) -> bool:
    """Return whether the result is the product with batch and heads apart.

    ``left`` and ``right`` are [batch * heads, rows, columns] of operands that are
    [batch, heads, rows, columns], and nothing else reads the product.
    """
    if not (x.rank == y.rank == 4 and left.rank == right.rank == 3 and x.shape[:2] == y.shape[:2]):
        return False
    columns = y.shape[-2 if product.attribute("transB") else -1]
    return (
        left.shape[1:] == x.shape[2:]
        and right.shape[1:] == y.shape[2:]
        and result.shape == (*x.shape[:3], columns)
        and product.is_single_use
    )


_products = (
    (op.MatMul(_left, _right).named("product"), op.MatMul(x, y)),
    *(
        (
            _ms.FusedMatMul(_left, _right, alpha=alpha, transA=0, transB=turned).named("product"),
            _ms.FusedMatMul(x, y, alpha=alpha, transA=0, transB=turned),
        )
        for turned in (0, 1)
    ),
)

product_of_heads = [
    rule(
        _part(product, apart) >> brought_apart,
        where=_are_joined,
        inexact=True,
        target="onnxruntime",
        doc="A product of matrices needs no batch and heads in one axis.",
        seen_in="torch/deberta_v2",
    )
    for product, brought_apart in _products
]

biased_product_of_heads = [
    rule(
        _part(op.Add(product, bias).named("biased"), apart)
        >> op.Add(brought_apart, _part(bias, apart)),
        where=[
            _are_joined,
            lambda product, bias, biased: product.same_shape(bias) and biased.is_single_use,
        ],
        inexact=True,
        target="onnxruntime",
        doc="What is added to a product of matrices is brought apart instead of their sum.",
        seen_in="torch/deberta_v2",
    )
    for product, brought_apart in _products
]
