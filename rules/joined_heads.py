"""Products of attention whose batch and heads are one axis, brought apart (target "onnxruntime").

Exporters of models that multiply matrices in batches of one axis reshape to it and back; the rules
of attention look for the heads on an axis of their own.
"""

from __future__ import annotations

from onnxfold.rewrite import attributes, op, rule, values

x, y, sizes, more_sizes, bias, apart = values("x y sizes more_sizes bias apart")
alpha = attributes("alpha")

_ms = op.domain("com.microsoft")

# with whatever attributes
_join, _join_too, _part = (op.any_of("Reshape") for _ in range(3))
_left, _right = _join(x, sizes).named("left"), _join_too(y, more_sizes).named("right")

# the operands are [batch, heads, rows, columns] and read as [batch * heads, rows, columns];
# the result is their product with batch and heads apart
_are_joined = (
    lambda x, y, left, right: (
        x.rank == y.rank == 4
        and left.rank == right.rank == 3
        and (x.shape[:2], left.shape[1:], right.shape[1:])
        == (y.shape[:2], x.shape[2:], y.shape[2:])
    ),
    lambda x, y, product, result: (
        result.shape == (*x.shape[:3], y.shape[-2 if product.attribute("transB") else -1])
        and product.is_single_use
    ),
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
            *_are_joined,
            lambda product, bias, biased: product.same_shape(bias) and biased.is_single_use,
        ],
        inexact=True,
        target="onnxruntime",
        doc="What is added to a product of matrices is brought apart instead of their sum.",
        seen_in="torch/deberta_v2",
    )
    for product, brought_apart in _products
]
