"""What it costs to change a weight: terms and conditions of other rule sets (no rules of its own).

A rule that scales a weight makes a new one. If something else still reads the old one, the file
grows; so such rules ask :func:`affordable` first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite import computed, constant, dtype_of, op
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.patterns import Expression

ALLOWANCE = 512
"""Bytes by which a rewrite may grow the constants: about what the removed nodes take."""

PRECISE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The dtypes of weights that may be rounded once more: in float16 that would be seen."""

_KEPT = ("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear")

Elements = Callable[[Match], int | None]
"""The number of elements of a constant that a rule makes."""


def affordable(
    weight: Expression, *, frees: Sequence[Any], makes: Sequence[Elements] = ()
) -> Callable[[Match], bool]:
    """A changed weight (and ``makes``) is not larger than the constants that nobody needs then.

    And it is float32 or float64: scaling a float16 weight would be seen in the results.

    Args:
        weight: The weight; the new one has its dtype and shape.
        frees: The constants that the matched nodes read; one that others read, too, stays.
        makes: Further constants of that dtype that the replacement makes.
    """

    def elements(match: Match) -> int | None:
        shape = match.static_shape(weight)
        return None if shape is None else math.prod(shape)

    return affordable_new(weight, frees=frees, makes=(elements, *makes))


def affordable_new(
    like: Expression, *, frees: Sequence[Any], makes: Sequence[Elements]
) -> Callable[[Match], bool]:
    """Like :func:`affordable`, where no weight is changed: ``makes`` are all that is new.

    Args:
        like: A constant that has the dtype of the new ones.
        frees: As there.
        makes: The constants that the replacement makes.
    """

    def affordable_constants(match: Match) -> bool:
        old = match.dtype(like)
        if old is None or old not in PRECISE:
            return False
        sizes = [size(match) for size in makes]
        if any(size is None for size in sizes):
            return False
        new = sum(_bytes(size, old) for size in sizes if size is not None)
        freed = 0
        for variable in frees:
            value = match[variable]
            if value is None:
                continue
            if not _folds(match, value):
                return False
            freed += _freed(match, value)
        return new <= freed + ALLOWANCE

    return affordable_constants


def _bytes(elements: int, dtype: ir.DataType) -> int:
    return math.ceil(elements * dtype.bitwidth / 8)


def _folds(match: Match, value: ir.Value) -> bool:
    """Constant propagation will compute it: no quantized weight, which stays as it is."""
    node = value.producer()
    if node is None or match.facts.known.tensor(value) is not None:
        return True
    if node.domain or node.op_type in _KEPT:
        return False
    return all(_folds(match, v) for v in node.inputs if v is not None)


def _freed(match: Match, value: ir.Value) -> int:
    """Bytes of the stored constants that are gone when one use of the value is."""
    if len(value._uses) != 1 or value.is_graph_output():
        return 0
    tensor = match.facts.known.tensor(value)
    if tensor is not None:
        return _bytes(tensor.size, tensor.dtype)
    node = value.producer()
    return 0 if node is None else sum(_freed(match, v) for v in node.inputs if v is not None)


# -------------------------------------------------------------------- computing with float64


def wide(value: Any) -> Any:
    """In a replacement: a constant in float64; what is computed of it is rounded only once."""
    return op.Cast(value, to=int(ir.DataType.DOUBLE))


def narrow(value: Any, like: Expression) -> Any:
    """In a replacement: back to the dtype that another value has."""
    return op.Cast(value, to=dtype_of(like))


def along(vector: Any, axis: Callable[[Match], tuple[int, int] | None]) -> Any:
    """In a replacement: a vector that broadcasts along one axis.

    Args:
        vector: The vector.
        axis: Gives the axis and the rank of what it broadcasts to.
    """

    def shape(match: Match) -> tuple[int, ...] | None:
        found = axis(match)
        return None if found is None else tuple(-1 if k == found[0] else 1 for k in range(found[1]))

    return op.Reshape(vector, constant(computed(shape)))


def spread(value: Any, size: Elements) -> Any:
    """In a replacement: a vector of a constant that is one or has one element a channel."""

    def shape(match: Match) -> list[int] | None:
        found = size(match)
        return None if found is None else [found]

    return op.Expand(op.Reshape(value, constant([-1])), constant(computed(shape)))


def per_channel(
    variable: Expression, of: Expression, axis: Callable[[Match], tuple[int, int] | None]
) -> Callable[[Match], bool]:
    """A constant with one number, or one a channel, that does not change the shape of ``of``.

    Args:
        variable: The constant.
        of: What it is combined with.
        axis: The channels' axis and the rank of ``of``.
    """

    def one_per_channel(match: Match) -> bool:
        shape, found = match.static_shape(variable), axis(match)
        sizes = match.shape(of)
        if shape is None or found is None or len(shape) > found[1]:
            return False
        channel, rank = found
        padded = (1,) * (rank - len(shape)) + shape
        if any(size != 1 for k, size in enumerate(padded) if k != channel):
            return False
        # a single channel must not be broadcast to several
        return padded[channel] == 1 or (sizes is not None and sizes[channel] == padded[channel])

    return one_per_channel
