"""What weights take in: expressions and conditions of other rule sets (no rules of its own).

A rule that scales a weight makes a new one. If something else still reads the old one, the file
grows; so such rules ask :func:`affordable` first.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.onnx_ir_private import uses
from onnxfold.rewrite import Matched, any_of, anything, attributes, constant, constants, op

w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
e = attributes("e")

ALLOWANCE = 512
"""Bytes by which a rewrite may grow the constants: about what the removed nodes take."""

DOUBLE = ir.DataType.DOUBLE
PRECISE = (ir.DataType.FLOAT, DOUBLE)
"""The dtypes of weights that may be rounded once more: in float16 that would be seen."""

_KEPT = ("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear")


def affordable(elements: int, like: Matched, *others: Matched | None) -> bool:
    """Return whether new constants are not larger than those that nothing reads then.

    They are float32 or float64, too: scaling a float16 weight would be seen in the results. A
    weight without elements stays: a 0 in the shape of a Reshape has another meaning.

    Args:
        elements: The number of elements of the new constants.
        like: A constant that the matched nodes read, of the dtype of the new ones.
        others: More of those; None for one that is omitted. One that others read, too, stays.
    """
    freed = [old.value for old in (like, *others) if old is not None]
    known = like.facts.known
    if like.dtype not in PRECISE or not like.size or not all(_folds(known, v) for v in freed):
        return False
    room = sum(_freed(known, value) for value in freed) + ALLOWANCE
    return bool(elements * like.dtype.itemsize <= room)


def _folds(known: KnownValues, value: ir.Value) -> bool:
    """Return whether constant propagation computes it: a quantized weight stays as it is."""
    node = value.producer()
    if node is None or known.tensor(value) is not None:
        return True
    if node.domain or node.op_type in _KEPT:
        return False
    return all(_folds(known, v) for v in node.inputs if v is not None)


def _freed(known: KnownValues, value: ir.Value) -> int:
    """Return the bytes of the stored constants that go when one use of the value goes."""
    if len(uses(value)) != 1 or value.is_graph_output():
        return 0
    tensor = known.tensor(value)
    if tensor is not None:
        return int(tensor.nbytes)
    node = value.producer()
    return 0 if node is None else sum(_freed(known, v) for v in node.inputs if v is not None)


def per_channel(c: Matched, of: Matched, axis: int) -> bool:
    """Return whether a constant has one number, or one a channel, and keeps the shape of ``of``.

    Args:
        c: The constant.
        of: What it is combined with.
        axis: The axis of the channels, counted from the front.
    """
    if c.rank > of.rank:
        return False
    sizes = (1,) * (of.rank - c.rank) + c.sizes
    # a single channel must not be broadcast to several
    is_vector = all(size == 1 for k, size in enumerate(sizes) if k != axis)
    return is_vector and sizes[axis] in (1, of.shape[axis])


# -------------------------------------------------------------------- computing with float64


def wide(value: Any) -> Any:
    """In a replacement: a constant in float64; what is computed of it is rounded only once."""
    return op.Cast(value, to=int(DOUBLE))


def narrow(value: Any) -> Any:
    """In a replacement: a constant in the dtype of the weight ``w``."""
    return op.Cast(value, to=lambda w: w.dtype)


def spread(value: Any, shape: Any) -> Any:
    """In a replacement: a vector of a constant that has one element or one a channel.

    Args:
        value: The constant.
        shape: A function that gives the shape of the vector.
    """
    return op.Expand(op.Reshape(value, constant([-1])), constant(shape))


# -------------------------------------------------------------------- the weight of `product`


def _by_channels(w: Matched, product: Matched) -> tuple[int, ...]:
    """Return the shape of a weight whose axes 0 and 2 are the channels of the product."""
    first, second, *window = w.sizes
    if product.op_type == "Conv" or product.attribute("transB"):
        return first, second, 1, *window
    groups = product.attribute("group") or 1
    return groups, first // groups, second, *window


def channels(w: Matched, product: Matched) -> tuple[int]:
    """Return the number of channels, or columns, that a weight gives ``product``, as a shape."""
    groups, _, size, *_ = _by_channels(w, product)
    return (groups * size,)


def scaled_weight(scales: Any, factor: Any) -> Any:
    """In a replacement: the weight ``w`` of the op that is named ``product``, scaled by channels.

    Args:
        scales: ``op.Mul`` or ``op.Div``.
        factor: A vector of float64 with one number a channel of the product.
    """
    of_channels = constant(
        lambda w, product: [n if k in (0, 2) else 1 for k, n in enumerate(_by_channels(w, product))]
    )
    scaled = scales(op.Reshape(wide(w), constant(_by_channels)), op.Reshape(factor, of_channels))
    return narrow(op.Reshape(scaled, constant(lambda w: w.shape)))


# -------------------------------------------------------------------- batch normalization


def normalized(product: Any) -> Any:
    """In a pattern: a BatchNormalization of something."""
    return op.BatchNormalization(
        product, scale, shift, mean, variance, epsilon=e, momentum=anything
    )


_deviation = op.Sqrt(op.Add(wide(variance), constant(lambda e: e, DOUBLE)))
normal_factor = op.Div(wide(scale), _deviation)
"""In a replacement: what it multiplies channels by."""


def normal_bias(bias: Any) -> Any:
    """In a replacement: the bias that a product needs to have done what it does."""
    moved = op.Sub(wide(shift), op.Mul(wide(mean), normal_factor))
    return narrow(any_of(op.Add(moved, op.Mul(bias, normal_factor)), moved))
