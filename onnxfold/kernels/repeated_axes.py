"""The stored extent of operands: zero strides repeat elements that are stored once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnxfold.kernels.dtypes import broadcast_shape
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array, distinct

# Operands and results up to this many bytes each are computed at once, larger ones postponed.
EAGER_BYTES = 1 << 16


def one_element_array(buffer: Buffer) -> Array:
    """Return an array of the buffer's shape and dtype with one element of memory."""
    return np.broadcast_to(np.zeros((), buffer.dtype.numpy()), buffer.shape)


def effective_bytes(arrays: Sequence[Array | None]) -> int:
    """Return the bytes of the largest operand or result, counting repeated elements once."""
    if all(a is None or a.size <= 16 for a in arrays):
        return 8 * 16 * 16  # an estimate for scalars and the like, of which there are thousands
    present = [a for a in arrays if a is not None]
    largest = max(distinct(a).nbytes for a in present)
    if len(present) > 1:
        # small operands can have a large broadcast, as in an outer sum
        collapsed = [a for a in collapse(present)[0] if a is not None]
        shape = broadcast_shape(*(a.shape for a in collapsed))
        largest = max(largest, math.prod(shape) * max(a.itemsize for a in collapsed))
    return largest


def collapse(
    arrays: Sequence[Array | None],
) -> tuple[Sequence[Array | None], tuple[int, ...] | None]:
    """Cut axes along which no operand varies to extent 1; also return the full shape.

    If there is no such axis, the shape is None.
    """
    present = [a for a in arrays if a is not None]
    if all(a.size <= 64 for a in present):
        return arrays, None
    if not any(0 in a.strides for a in present if a.size > 64):
        return arrays, None
    shape = broadcast_shape(*(a.shape for a in present))
    constant = [
        axis
        for axis in range(-len(shape), 0)
        if shape[axis] > 1
        and all(a.ndim < -axis or a.shape[axis] == 1 or a.strides[axis] == 0 for a in present)
    ]
    if not constant:
        return arrays, None
    cut: list[Array | None] = []
    for a in arrays:
        axes = () if a is None else range(-a.ndim, 0)
        once = (*(slice(0, 1) if axis in constant else slice(None) for axis in axes), ...)
        cut.append(None if a is None else a[once])
    return cut, shape
