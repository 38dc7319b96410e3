"""Products of attention whose batch and heads are one axis, brought apart (target "onnxruntime").

Exporters of models that multiply matrices in batches of one axis reshape to it and back; the rules
of attention look for the heads on an axis of their own.
"""

from __future__ import annotations

from onnxfold.rewrite import any_of, op, rule, values

x, y, sizes, more_sizes, bias, apart = values("x y sizes more_sizes bias apart")

# with whatever attributes
_join, _join_too, _part = (op.any_of("Reshape") for _ in range(3))
_left, _right = _join(x, sizes).named("left"), _join_too(y, more_sizes).named("right")

product_of_heads = [
    rule(
        _part(any_of(op.Add(joined, bias).named("biased"), joined), apart)
        >> any_of(op.Add(multiply(x, y), _part(bias, apart)), multiply(x, y)),
        where=[
            # the operands are [batch, heads, rows, columns], read as [batch * heads, rows, columns]
            lambda x, y, left, right: (
                x.rank == y.rank == 4
                and left.rank == right.rank == 3
                and (x.shape[:2], left.shape[1:], right.shape[1:])
                == (y.shape[:2], x.shape[2:], y.shape[2:])
            ),
            # the result is their product with batch and heads apart
            lambda x, y, product, result: (
                result.shape == (*x.shape[:3], y.shape[-2 if product.attribute("transB") else -1])
                and product.is_single_use
                and not any(map(product.attribute, ("transA", "transBatchA", "transBatchB")))
            ),
            lambda product, bias=None, biased=None: (
                bias is None or (product.same_shape(bias) and biased.is_single_use)
            ),
        ],
        inexact=True,
        target="onnxruntime",
        doc="MatMul between Reshapes that join batch and heads to one axis and back is done without"
        " them.",
        seen_in="torch/deberta_v2",
    )
    for multiply in (op.any_of("MatMul"), op.domain("com.microsoft").any_of("FusedMatMul"))
    for joined in (multiply(_left, _right).named("product"),)
]
