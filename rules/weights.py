"""What it costs to change a weight: terms and conditions of other rule sets (no rules of its own).

A rule that scales a weight makes a new one. If something else still reads the old one, the file
grows; so such rules ask :func:`affordable` first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.onnx_ir_private import uses
from onnxfold.rewrite import Matched, constant, dtype_of, given, op, size_of
from onnxfold.rewrite.patterns import Expression
from onnxfold.rewrite.terms import Term

ALLOWANCE = 512
"""Bytes by which a rewrite may grow the constants: about what the removed nodes take."""

PRECISE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The dtypes of weights that may be rounded once more: in float16 that would be seen."""

_KEPT = ("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear")


def affordable(weight: Expression, *, frees: Sequence[Any], makes: Sequence[Any] = ()) -> Term:
    """A changed weight (and ``makes``) is not larger than the constants that nobody needs then.

    And it is float32 or float64: scaling a float16 weight would be seen in the results.

    Args:
        weight: The weight; the new one has its dtype and shape.
        frees: The constants that the matched nodes read; one that others read, too, stays.
        makes: Elements of further constants of that dtype that the replacement makes.
    """
    return _is_paid(weight, frees, (size_of(weight), *makes))


def affordable_new(like: Expression, *, frees: Sequence[Any], makes: Sequence[Any]) -> Term:
    """Like :func:`affordable`, where no weight is changed: ``makes`` are all that is new.

    Args:
        like: A constant that has the dtype of the new ones.
        frees: As there.
        makes: Elements of each constant that the replacement makes.
    """
    return _is_paid(like, frees, makes)


@given
def _is_paid(like: Matched, frees: Sequence[Matched | None], makes: Sequence[int]) -> bool:
    if like.dtype not in PRECISE:
        return False
    free = [old.value for old in frees if old is not None]
    known = like.facts.known
    if not all(_folds(known, value) for value in free):
        return False
    new = sum(_bytes(size, like.dtype) for size in makes)
    return new <= sum(_freed(known, value) for value in free) + ALLOWANCE


def _bytes(elements: int, dtype: ir.DataType) -> int:
    return math.ceil(elements * dtype.bitwidth / 8)


def _folds(known: KnownValues, value: ir.Value) -> bool:
    """Constant propagation will compute it: no quantized weight, which stays as it is."""
    node = value.producer()
    if node is None or known.tensor(value) is not None:
        return True
    if node.domain or node.op_type in _KEPT:
        return False
    return all(_folds(known, v) for v in node.inputs if v is not None)


def _freed(known: KnownValues, value: ir.Value) -> int:
    """Bytes of the stored constants that are gone when one use of the value is."""
    if len(uses(value)) != 1 or value.is_graph_output():
        return 0
    tensor = known.tensor(value)
    if tensor is not None:
        return _bytes(tensor.size, tensor.dtype)
    node = value.producer()
    return 0 if node is None else sum(_freed(known, v) for v in node.inputs if v is not None)


# -------------------------------------------------------------------- computing with float64


def wide(value: Any) -> Any:
    """In a replacement: a constant in float64; what is computed of it is rounded only once."""
    return op.Cast(value, to=int(ir.DataType.DOUBLE))


def narrow(value: Any, like: Expression) -> Any:
    """In a replacement: back to the dtype that another value has."""
    return op.Cast(value, to=dtype_of(like))


def along(vector: Any, axis: int, rank: Any) -> Any:
    """In a replacement: a vector that broadcasts along one axis of what has that rank."""
    return op.Reshape(vector, constant(_only(axis, rank)))


@given
def _only(axis: int, rank: int) -> tuple[int, ...]:
    return tuple(-1 if k == axis else 1 for k in range(rank))


def spread(value: Any, size: Any) -> Any:
    """In a replacement: a vector of a constant that is one or has one element a channel."""
    return op.Expand(op.Reshape(value, constant([-1])), constant((size,)))


@given
def per_channel(c: Matched, of: Matched, channel: int, rank: int) -> bool:
    """A constant with one number, or one a channel, that does not change the shape of ``of``.

    Args:
        c: The constant.
        of: What it is combined with.
        channel: The channels' axis, counted from the front.
        rank: The rank of ``of``.
    """
    if c.rank > rank:
        return False
    padded = (1,) * (rank - c.rank) + c.sizes
    if any(size != 1 for k, size in enumerate(padded) if k != channel):
        return False
    # a single channel must not be broadcast to several
    return padded[channel] == 1 or of.shape[channel] == padded[channel]


@given
def if_given(size: int, b: Matched | None = None) -> int:
    """As many elements, if there is a bias ``b``."""
    return 0 if b is None else size
