"""View ops: what they make of the axes of their operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import AllocationBound
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array


def keeps_order(operation: Operation, result: Buffer) -> bool:
    """True if the elements of a view op's result have the order of its operand's."""
    operand = operation.operands[0]
    assert operand is not None
    if operand.size != result.size:
        return False
    layout, offset = layout_of(operation, result)
    return offset == 0 and layout.flags.c_contiguous


def layout_of(operation: Operation, result: Buffer) -> tuple[Array, int]:
    """What a view op makes of an operand of bytes that lie in row-major order, and its first one.

    Only shape and strides of it may be looked at: there is no memory behind it.
    """
    operand = operation.operands[0]
    assert operand is not None
    place = np.empty(1, np.uint8)
    array = np.lib.stride_tricks.as_strided(
        place, operand.shape, units_of(operand.shape), writeable=False
    )
    layout = view(operation, list(operation.results).index(result), array)
    first = layout.__array_interface__["data"][0] - place.__array_interface__["data"][0]
    return layout, first


def units_of(shape: Sequence[int]) -> list[int]:
    """For each axis how many elements lie below one index of it."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def view(operation: Operation, index: int, array: Array) -> Array:
    """Apply a view op to an array in the place of its first operand. Raises Postpone, not copy."""
    assert operation.kernel is not None
    others = [None if b is None else b.array() for b in operation.operands[1:]]
    with AllocationBound(0):
        views = operation.kernel(
            [array, *others],
            operation.attributes,
            n_outputs=len(operation.node.outputs),
            opset=operation.opset,
        )
    return views[index]
