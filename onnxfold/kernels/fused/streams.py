"""Reductions that read their operand piece by piece, with the bits of onnxruntime's whole one.

Three ways, all exact. Along a first axis that stays, every row is reduced by itself, so rows can be
reduced in groups, by whoever reduces the whole. Over the first axes, rows are added one by one
(:mod:`.leading`). Over all axes, sums follow onnxruntime's order (:mod:`.ordered`), and extremes
have none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import FLOATS, INTEGERS, DType, integers
from onnxfold.kernels.fused.leading import EXTREMES, reduce_rows
from onnxfold.kernels.fused.ordered import COMPUTED_IN, SUMS, fold, register_of, room_for
from onnxfold.kernels.fused.program import Program, Rows
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import NotExact
from onnxfold.pool import Pool
from onnxfold.pool.buffer import Array
from onnxfold.pool.parallel import THREADS, in_order
from onnxfold.pool.source import Box
from onnxfold.pool.tiles import boxes_of

# Operands up to this many bytes are reduced as a whole.
STREAMED_FROM = 1 << 22
_PIECE = 1 << 20
# Rows are reduced in groups of about so many bytes, and of a multiple of so many rows: then a row
# lies at an address that SIMD code treats like that of its place in the whole.
_GROUP, _ROWS = 1 << 23, 16
_LARGEST_GROUP = 1 << 26

_ORDERED: frozenset[DType] = FLOATS | INTEGERS


def is_streamed(operation: Operation) -> bool:
    """True for a reduction of a large operand that :func:`reduced` may do."""
    node = operation.node
    if node.domain != "" or not node.op_type.startswith("Reduce") or not operation.operands:
        return False
    first, *others = operation.operands
    if first is None or first.nbytes < STREAMED_FROM:
        return False
    if not all(b is None or b.is_known for b in others):
        return False
    axes = _axes(operation)
    return _by_rows(operation, axes) or _over_rows(operation, axes) or _over_all(operation, axes)


def _by_rows(operation: Operation, axes: set[int]) -> bool:
    first = operation.operands[0]
    assert first is not None
    if not axes or 0 in axes or first.dtype.numpy().hasobject:
        return False
    row = first.nbytes // first.shape[0]
    return first.shape[0] >= 2 * _ROWS and _ROWS * row <= _LARGEST_GROUP


def _over_all(operation: Operation, axes: set[int]) -> bool:
    first = operation.operands[0]
    assert first is not None
    return len(axes) == len(first.shape) and _is_accepted(operation)


def _over_rows(operation: Operation, axes: set[int]) -> bool:
    first = operation.operands[0]
    assert first is not None
    leading = len(axes)
    if axes != set(range(leading)) or not 0 < leading < len(first.shape):
        return False
    # a single element has another order
    return math.prod(first.shape[leading:]) > 1 and _is_accepted(operation)


def _is_accepted(operation: Operation) -> bool:
    first = operation.operands[0]
    assert first is not None
    accepted = {**dict.fromkeys(SUMS, COMPUTED_IN), **dict.fromkeys(EXTREMES, _ORDERED)}
    return first.dtype.numpy() in accepted.get(operation.node.op_type, ())


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


def is_extreme(operation: Operation) -> bool:
    """True if elements that are repeated need to be looked at once only."""
    return operation.node.op_type in EXTREMES and not _by_rows(operation, _axes(operation))


def reduced(
    operation: Operation, program: Program, whole: Callable[[Operation], Array], pool: Pool
) -> Array:
    """The result of a reduction for which :func:`is_streamed`.

    Args:
        operation: The reduction.
        program: Computes its first operand, with that one's axes; for :func:`is_extreme` each of
            its elements at least once.
        whole: Computes the same op on known operands.
        pool: Counts the memory that the pieces take.

    Raises:
        NotExact: its bits can only be had from the whole operand.
    """
    first = operation.operands[0]
    assert first is not None
    if _by_rows(operation, _axes(operation)):
        return _in_groups(operation, program, whole, pool)
    op_type, dtype = operation.node.op_type, first.dtype.numpy()
    axes = _axes(operation)
    if _over_rows(operation, axes):
        working = program.working_bytes * THREADS + (THREADS + 2) * 2 * _PIECE
        with np.errstate(all="ignore"), pool.working(working):
            rows = reduce_rows(op_type, program, len(axes), _PIECE, operation.opset)
        shape = first.shape[len(axes) :]
        result = np.broadcast_to(rows, shape)
        ones = (1,) * len(axes) if operation.attributes.get("keepdims", 1) else ()
        return np.ascontiguousarray(result).reshape(*ones, *shape)
    with np.errstate(all="ignore"), pool.working(program.working_bytes * THREADS + 4 * _PIECE):
        if op_type in EXTREMES:
            result = _extreme(EXTREMES[op_type], program)
        else:
            register = register_of(op_type, operation.opset, dtype)
            pieces = _pieces(program, room_for(dtype, register), COMPUTED_IN[dtype])
            result = fold(op_type, pieces, dtype, register)
    rank = len(first.shape) if operation.attributes.get("keepdims", 1) else 0
    return np.asarray(result).astype(dtype).reshape((1,) * rank)


def _in_groups(
    operation: Operation, program: Program, whole: Callable[[Operation], Array], pool: Pool
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
        array = pool.store(Rows(program, start, stop)).reshape(stop - start, *first.shape[1:])
        buffer = pool.adopt(array, first.dtype)
        pool.retain(buffer)
        part = Operation(operation.node, (buffer, *operation.operands[1:]), operation.opsets)
        results.append(np.array(whole(part)))
        pool.release(buffer)
    return np.concatenate(results, axis=0)


def _boxes(program: Program) -> Iterator[Box]:
    """Boxes that cover the elements in their order."""
    return (box for box, _, _ in boxes_of(program.shape, program.dtype, _PIECE))


def _pieces(program: Program, room: int, dtype: DType) -> Iterator[Array]:
    """The elements in order and in a dtype, as flat arrays with room at their front."""

    def compute(box: Box) -> Array:
        shape = tuple(s.stop - s.start for s in box)
        flat = np.empty(room + math.prod(shape), dtype)
        if program.dtype.numpy() == dtype:
            program.fill(box, flat[room:].reshape(shape))
        else:
            flat[room:] = _piece(program, box).reshape(-1)
        program.release(box)
        return flat

    return in_order(_boxes(program), compute)


def _piece(program: Program, box: Box) -> Array:
    piece = np.empty([s.stop - s.start for s in box], program.dtype.numpy())
    program.fill(box, piece)
    program.release(box)
    return piece


def _extreme(combine: Any, program: Program) -> Any:
    """The greatest or least element. Raises NotExact where its bits depend on the order."""

    def of_piece(box: Box) -> Any:
        piece = _piece(program, box)
        extreme = combine.reduce(piece, axis=None)
        if piece.dtype in FLOATS and extreme == 0 and np.signbit(piece[piece == 0]).any():
            raise NotExact("which of 0.0 and -0.0 is greater is not defined")
        return extreme

    result = functools.reduce(combine, in_order(_boxes(program), of_piece))
    if result != result:
        raise NotExact("NaN has no order")
    return result
