"""Fuse attention into one op of onnxruntime (target "onnxruntime").

Heads and their sizes are inferred from shapes, the scale from the product with it. Keys and values
have any source, with shape [batch, heads, length, size]: with a past, rotated, or repeated. float32
only: the CPU provider's kernel is for that, and rounds differently.

A Transpose after the block must move its heads behind the length, as the op does: blocks of GPT-2,
Llama and ViT take 0.85 to 0.9 of the time (release 1.32, one thread). For other layouts
(`nn.MultiheadAttention`, SAM), the op took 1 to 10 % longer than the two products and the Softmax;
with batch and heads on one axis, from 12 % less to 70 % more.
"""

from __future__ import annotations

from onnxfold.rules.onnxruntime_target import fusion, ms

from onnxfold.rewrite import (
    FLOAT,
    Attribute,
    Constant,
    any_of,
    constant,
    filled,
    op,
    result,
    where,
)

_TURN = (0, 2, 1, 3)


@fusion(opset=10, seen_in="models/swin")
def attention(
    q,
    k,
    kt,
    v,
    mask,
    keep,
    hide,
    low: Constant,
    factor: Constant,
    divisor: Constant,
    alpha: Attribute,
    axis: Attribute,
):
    """softmax(q @ k^T * scale + mask) @ v becomes MultiHeadAttention."""
    product = any_of(
        op.MatMul(q, kt),
        ms.FusedMatMul(q, kt, alpha=alpha, transA=0, transB=0),
        ms.FusedMatMul(q, k, alpha=alpha, transA=0, transB=1),
    )
    scores = any_of(op.Mul(product, factor), op.Div(product, divisor), product)
    masked = any_of(
        op.Where(keep, op.Add(scores, mask), low),
        op.Where(hide, low, op.Add(scores, mask)),
        op.Add(scores, mask),
        op.Where(keep, scores, low),
        op.Where(hide, low, scores),
        scores,
    )
    weights = op.Softmax(masked, axis=axis)
    # a fully masked row gives zeros, or NaN
    zero = filled(0)
    guarded = any_of(op.Where(op.IsNaN(weights), zero, weights), weights)

    # the mask as a value added to the scores
    nothing = constant(0.0, like=q)
    added = any_of(
        op.Where(keep, mask, low),
        op.Where(hide, low, mask),
        mask,
        op.Where(keep, nothing, low),
        op.Where(hide, low, nothing),
    )
    query = op.Reshape(op.Transpose(q, perm=_TURN), constant((0, 0, q.shape[1] * q.shape[3])))
    as_large = op.Concat(
        constant([1, 1]),
        op.Slice(op.Shape(query), constant([1]), constant([2])),
        op.Slice(op.Shape(v), constant([2]), constant([3])),
        axis=0,
    )
    scale = alpha.or_else(1.0) * factor.number.or_else(1) / divisor.number.or_else(1)
    fused = ms.MultiHeadAttention(
        query,
        any_of(k, op.Transpose(kt, perm=(0, 1, 3, 2))),
        v,
        None,
        None,
        op.Expand(added, as_large),
        num_heads=q.shape[1],
        scale=scale,
    )
    guarded_too = any_of(op.Where(op.IsNaN(fused), zero, fused), fused)
    after = op.Reshape(guarded_too, constant((0, 0, q.shape[1], q.shape[3])))
    return op.Transpose(op.MatMul(guarded, v), perm=_TURN) >> after, where(
        q.dtype == FLOAT,
        # operands have the same batch, heads and head size: only the mask is broadcast
        weights.axes == (3,),
        # the last axis is that of the values, or the product with them fails
        weights.shape[:-1] == q.shape[:-1],
        q.sizes_of((1, 3)).smallest > 0,
        v.rank == 4,
        v.shape == (*q.shape[:2], v.shape[2], q.shape[3]),
        k.is_omitted | (k.shape == v.shape),
        kt.is_omitted | (kt.shape == (*q.shape[:2], q.shape[3], v.shape[2])),
        # replacing a score by this value has the same effect as adding it
        low.is_omitted | (low.number <= -1e30),
        zero.is_omitted | zero.shape.is_in((), (1,)),
        divisor.number.or_else(1) != 0,
        # as a scale, 0 is the usual one
        scale != 0,
    )


# -------------------------------------------------------------------- batch and heads on one axis


# Exporters for batched matrix products reshape to three axes and back. The rule above requires a
# separate axis for the heads.
@fusion(each=[(op("MatMul"),), (ms("FusedMatMul"),)], seen_in="torch/deberta_v2")
def product_of_heads(x, y, sizes, more_sizes, bias, apart, multiply):
    """MatMul between Reshapes that join batch and heads to one axis and back is computed without
    them.
    """
    left, right = op("Reshape")(x, sizes), op("Reshape")(y, more_sizes)
    product = multiply(left, right)
    biased = op.Add(product, bias)
    part = op("Reshape")
    after = any_of(op.Add(multiply(x, y), part(bias, apart)), multiply(x, y))
    return part(any_of(biased, product), apart) >> after, where(
        # the operands are [batch, heads, rows, columns], read as [batch * heads, rows, columns]
        x.rank == 4,
        y.rank == 4,
        x.shape[:2] == y.shape[:2],
        left.shape[1:] == x.shape[2:],
        right.shape[1:] == y.shape[2:],
        # the result is their product with separate batch and heads
        result.shape[:-1] == x.shape[:3],
        product.is_single_use,
        *(
            product.attribute(name, 0) == 0
            for name in ("transBatchA", "transBatchB")
            if multiply.domain
        ),
        bias.is_omitted | (product.same_shape(bias) & biased.is_single_use),
    )
