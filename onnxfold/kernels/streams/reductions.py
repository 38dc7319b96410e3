"""Reductions that read their operand piece by piece, with the bits of onnxruntime's whole one.

Along a first axis that stays, every row is reduced by itself, so rows can be reduced in groups, by
whoever reduces the whole. Sums over all elements follow onnxruntime's order (:mod:`.sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from onnxfold.kernels.dtypes import DType, integers
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.streams.sources import Stream
from onnxfold.kernels.streams.sums import COMPUTED_IN, SUMS, fold, register_of, room_for
from onnxfold.pool import Pool
from onnxfold.pool.buffer import Array
from onnxfold.pool.parallel import THREADS, in_order
from onnxfold.pool.source import WORKING_BYTES, Box
from onnxfold.pool.tiles import boxes_of

# Operands up to this many bytes are reduced as a whole.
REDUCED_FROM = 1 << 22
_PIECE = 1 << 20
# Rows are reduced in groups of about so many bytes, and of a multiple of so many rows: then a row
# lies at an address that SIMD code treats like that of its place in the whole.
_GROUP, _ROWS = 1 << 23, 16
_LARGEST_GROUP = 1 << 26


def is_in_pieces(operation: Operation) -> bool:
    """True for a reduction of a large operand that :func:`reduced` may do."""
    node = operation.node
    if node.domain != "" or not node.op_type.startswith("Reduce") or not operation.operands:
        return False
    first, *others = operation.operands
    if first is None or first.nbytes < REDUCED_FROM or first.dtype.numpy().hasobject:
        return False
    if not all(b is None or b.is_known for b in others):
        return False
    axes = _axes(operation)
    if len(axes) == len(first.shape):
        return node.op_type in SUMS and first.dtype.numpy() in COMPUTED_IN
    row = first.nbytes // first.shape[0]
    is_by_rows = len(axes) > 0 and 0 not in axes
    return is_by_rows and first.shape[0] >= 2 * _ROWS and _ROWS * row <= _LARGEST_GROUP


def _axes(operation: Operation) -> set[int]:
    """The axes that are reduced, from the front; none if the node does nothing or is invalid."""
    first = operation.operands[0]
    assert first is not None
    rank = len(first.shape)
    axes = operation.attributes.get("axes")
    if len(operation.operands) > 1 and operation.operands[1] is not None:
        axes = integers(operation.operands[1].array(), "axes")
    if not axes:
        return set() if operation.attributes.get("noop_with_empty_axes") else set(range(rank))
    if not all(-rank <= a < rank for a in axes):
        return set()
    return {a % rank for a in axes}


def reduced(
    operation: Operation, operand: Stream, whole: Callable[[Operation], Array], pool: Pool
) -> Array:
    """The result of a reduction for which :func:`is_in_pieces`.

    Args:
        operation: The reduction.
        operand: Computes its first operand, with that one's axes.
        whole: Computes the same op on known operands.
        pool: Counts the memory that the pieces take.

    Raises:
        NotExact: its bits can only be had from the whole operand.
    """
    first = operation.operands[0]
    assert first is not None
    rank = len(first.shape)
    if len(_axes(operation)) < rank:
        return _in_groups(operation, operand, whole, pool)
    op_type, dtype = operation.node.op_type, first.dtype.numpy()
    register = register_of(op_type, operation.opset, dtype)
    with np.errstate(all="ignore"), pool.working(THREADS * WORKING_BYTES + 4 * _PIECE):
        pieces = _pieces(operand, room_for(dtype, register), COMPUTED_IN[dtype])
        result = fold(op_type, pieces, dtype, register)
    kept = rank if operation.attributes.get("keepdims", 1) else 0
    return np.asarray(result).astype(dtype).reshape((1,) * kept)


def _in_groups(
    operation: Operation, operand: Stream, whole: Callable[[Operation], Array], pool: Pool
) -> Array:
    first = operation.operands[0]
    assert first is not None
    rows = first.shape[0]
    group = max(1, _GROUP * rows // first.nbytes // _ROWS) * _ROWS
    starts = list(range(0, rows, group))
    if rows - starts[-1] < _ROWS:  # so few could be reduced in another way
        starts.pop()
    results = []
    for start, stop in zip(starts, [*starts[1:], rows], strict=True):
        buffer = pool.adopt(pool.store(operand.rows(start, stop)), first.dtype)
        pool.retain(buffer)
        part = Operation(operation.node, (buffer, *operation.operands[1:]), operation.opsets)
        results.append(np.array(whole(part)))
        pool.release(buffer)
    return np.concatenate(results, axis=0)


def _pieces(operand: Stream, room: int, dtype: DType) -> Iterator[Array]:
    """The elements in order and in a dtype, as flat arrays with room at their front."""

    def compute(box: Box) -> Array:
        shape = tuple(s.stop - s.start for s in box)
        flat = np.empty(room + math.prod(shape), dtype)
        if operand.dtype.numpy() == dtype:
            operand.fill(box, flat[room:].reshape(shape))
        else:
            piece = np.empty(shape, operand.dtype.numpy())
            operand.fill(box, piece)
            flat[room:] = piece.reshape(-1)
        return flat

    boxes = (box for box, _, _ in boxes_of(operand.shape, operand.dtype, _PIECE))
    yield from in_order(boxes, compute)
    operand.release()
