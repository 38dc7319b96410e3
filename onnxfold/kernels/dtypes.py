"""Sets of dtypes that kernels accept, and checks that all families of kernels share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onnxfold.kernels.registry import (
    MOST_BYTES,
    Array,
    Kind,
    KindRule,
    NotExact,
    Postpone,
    Unfoldable,
)
from onnxfold.memory import memory_of_the_machine
from onnxfold.storage.checks import MAX_RANK

DType = np.dtype[Any]

BOOL = np.dtype(bool)
STRING = np.dtype(object)
FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
INT64 = np.dtype(np.int64)
BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)

SIGNED = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED = frozenset(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTEGERS = SIGNED | UNSIGNED
FLOATS: frozenset[DType] = frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64))
NUMBERS = INTEGERS | FLOATS
ORDERED = NUMBERS - {INT64}
"""The dtypes that onnxruntime compares correctly. Its SIMD code compares the lower halves of int64
as signed numbers."""

# Maximum number of axes, sizes or parts of an op.
_LONGEST_LIST = 1 << 16


def require(x: Array, accepted: frozenset[DType]) -> None:
    """Raise NotExact unless the kernel is right for the dtype of ``x``."""
    if x.dtype not in accepted:
        raise NotExact(f"no NumPy arithmetic for {x.dtype.name}")


def elementwise_on(accepted: frozenset[DType]) -> KindRule:
    """Return the kind of a kernel that cannot fail if every operand's dtype is in ``accepted``."""

    def rule(dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        fits = all(d is None or d in accepted for d in dtypes)
        return Kind.ELEMENTWISE if fits else Kind.GENERAL

    return rule


_MEMORY = memory_of_the_machine()


def check_representable(shape: Sequence[int], dtype: DType) -> None:
    """Raise Unfoldable for a shape that no NumPy array, not even a view, can have."""
    if len(shape) > MAX_RANK:
        raise Unfoldable(f"a result of rank {len(shape)} is not representable")
    if min(shape, default=0) < 0:
        raise Unfoldable(f"a result of shape {list(shape)} does not exist")
    # NumPy's own size check ignores zeros.
    if math.prod(d for d in shape if d) * dtype.itemsize >= 1 << 63:
        raise Unfoldable(f"a result of shape {list(shape)} is not representable")


def check_allocatable(shape: Sequence[int], dtype: DType) -> None:
    """Raise Unfoldable above the machine's memory, Postpone above the caller's ``most_bytes``.

    Every kernel whose result can be much larger than its operands calls this before it allocates,
    as the sizes may come from a hostile file.
    """
    check_representable(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    bound = MOST_BYTES.get()
    if bound is not None and size > bound:
        raise Postpone
    if size > _MEMORY:
        raise Unfoldable(f"a result of shape {list(shape)} would take {size} bytes")


def normalized_axis(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the front. Raises Unfoldable if there is no such axis."""
    if not -rank <= axis < rank:
        raise Unfoldable(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


Integers = Array | Sequence[int]
"""A shape, axes, pads and the like: an operand in newer opsets, an attribute in older ones."""


def integers(x: Integers, what: str) -> list[int]:
    """Return the elements of a 0-d or 1-d integer operand, or of an attribute."""
    if not isinstance(x, np.ndarray):
        return list(x)
    if x.ndim > 1 or x.dtype.kind not in "iu" or x.size > _LONGEST_LIST:
        raise Unfoldable(f"{what} must be a list of integers")
    numbers: list[int] = x.ravel().tolist()
    return numbers


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the common shape by ONNX multidirectional broadcasting.

    Raises:
        Unfoldable: The shapes do not broadcast.
    """
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError as error:
        raise Unfoldable(f"shapes {[list(s) for s in shapes]}: {error}") from error
