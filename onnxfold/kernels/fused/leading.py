"""Reductions over the first axes, row after row: what onnxruntime does with the bits it gives.

Every element of the result has its own sum, and onnxruntime adds the rows to it one by one, in
their order. That this is so for an op and a dtype is checked by asking it for a few results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import FLOATS, DType
from onnxfold.kernels.engines import Engines
from onnxfold.kernels.fused.ordered import COMPUTED_IN, SUMS
from onnxfold.kernels.fused.program import Program, cuts
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import NotExact
from onnxfold.pool import Pool
from onnxfold.pool.buffer import Array
from onnxfold.pool.parallel import in_order
from onnxfold.pool.source import Box
from onnxfold.pool.tiles import boxes_of

EXTREMES: dict[str, Any] = {"ReduceMax": np.maximum, "ReduceMin": np.minimum}
# A box of the result, rows for it behind one of no value, and whether they are the first.
Piece = tuple[Box, Array, bool]
# Shapes that are asked for: few and many rows, narrow and wide.
_SAMPLES = ((1003, 5), (37, 301), (5, 40_013), (200, 2))


def reduce_rows(op_type: str, program: Program, leading: int, nbytes: int, opset: int) -> Array:
    """The result of a reduction over the first ``leading`` axes of what a program computes.

    Args:
        op_type: One of ``EXTREMES``, or of :data:`~onnxfold.kernels.fused.ordered.SUMS` for floats.
        program: Computes the operand, with its axes.
        leading: How many axes are reduced.
        nbytes: Length of a piece, bytes.
        opset: Version of the op.

    Returns:
        An array of the operand's dtype, without the axes that are reduced.

    Raises:
        NotExact: its bits can only be had from the whole operand.
    """
    dtype = program.dtype.numpy()
    if op_type in SUMS:
        _check_order(op_type, opset, dtype)
    boxes = _boxes(program, leading, nbytes)
    result = _reduced(op_type, _pieces(program, boxes, leading), program.shape, leading, dtype)
    if op_type in EXTREMES and dtype in FLOATS and (np.isnan(result) | (result == 0)).any():
        raise NotExact("NaN has no order, and which of 0.0 and -0.0 is greater is not defined")
    return result


def _boxes(program: Program, leading: int, nbytes: int) -> Iterator[Box]:
    """Boxes in which the rows come in their order for each element of the result."""
    if program.fast_axis == leading - 1:
        return _columns(program, leading, nbytes)
    return (box for box, _, _ in boxes_of(program.shape, program.dtype, nbytes))


def _columns(program: Program, leading: int, nbytes: int) -> Iterator[Box]:
    """All rows of a few columns, as it is the columns that lie in memory."""
    shape = program.shape
    *outer, rows = shape[:leading]
    each = math.prod(shape[leading + 1 :]) * program.dtype.numpy().itemsize
    column = each * math.prod(shape[:leading])
    width = max(1, nbytes // column)
    sizes = [*outer, rows] if column <= nbytes else [*(1 for _ in outer), max(1, nbytes // each)]
    rest = tuple(slice(0, extent) for extent in shape[leading + 1 :])
    for start in range(0, shape[leading], width):
        columns = slice(start, min(start + width, shape[leading]))
        for along in cuts(tuple(slice(0, extent) for extent in shape[:leading]), sizes):
            yield (*along, columns, *rest)


def _pieces(program: Program, boxes: Iterator[Box], leading: int) -> Iterator[Piece]:
    def compute(box: Box) -> Piece:
        extents = [s.stop - s.start for s in box]
        rows = math.prod(extents[:leading])
        piece = np.empty((rows + 1, *extents[leading:]), program.dtype.numpy())
        program.fill(box, piece[1:].reshape(extents))
        program.release(box)
        return box[leading:], piece, not any(s.start for s in box[:leading])

    return in_order(boxes, compute)


def _reduced(
    op_type: str,
    pieces: Iterator[Piece],
    shape: Sequence[int],
    leading: int,
    dtype: DType,
) -> Array:
    way = SUMS.get(op_type)
    combine = EXTREMES[op_type] if way is None else way.combine
    computed_in = dtype if way is None else COMPUTED_IN[dtype]
    total = np.empty(shape[leading:], computed_in)
    for place, piece, begins in pieces:
        piece = piece.astype(computed_in, copy=False)
        if way is not None and way.prepare is not None:
            way.prepare(piece[1:], out=piece[1:])
        if begins:
            piece = piece[1:]
        else:
            piece[0] = total[place]
        if piece[0].size > 1:  # along the first axis NumPy goes row by row
            total[place] = combine.reduce(piece, axis=0)
        else:  # but not in a single column
            total[place] = combine.accumulate(piece, axis=0)[-1]
    if way is not None and way.finish is not None:
        total = way.finish(total, computed_in.type(math.prod(shape[:leading])))
    return np.asarray(total).astype(dtype, copy=False)


@functools.cache
def _check_order(op_type: str, opset: int, dtype: DType) -> None:
    """Raise NotExact unless this onnxruntime goes row by row."""
    rng = np.random.default_rng(0)
    for shape in _SAMPLES:
        sample = rng.standard_normal(shape)
        if SUMS[op_type].combine is np.multiply:
            sample = np.exp(sample / 8)
        sample = sample.astype(dtype)
        middle = shape[0] // 2
        rows = [np.concatenate([part[:1], part]) for part in (sample[:middle], sample[middle:])]
        whole: Box = (slice(0, shape[1]),)
        with np.errstate(all="ignore"):
            pieces = iter([(whole, rows[0], True), (whole, rows[1], False)])
            ours = _reduced(op_type, pieces, shape, 1, dtype)
        if ours.tobytes() != _by_onnxruntime(op_type, opset, sample).tobytes():
            raise NotExact(f"{op_type}: onnxruntime adds rows in an order of its own")


def _by_onnxruntime(op_type: str, opset: int, sample: Array) -> Array:
    pool = Pool()
    operands = [pool.adopt(sample, ir.DataType.from_numpy(sample.dtype))]
    attributes: dict[str, Any] = {"keepdims": 0}
    if opset >= (13 if op_type == "ReduceSum" else 18):
        operands.append(pool.adopt(np.array([0]), ir.DataType.INT64))
    else:
        attributes["axes"] = [0]
    node = ir.node(op_type, [None] * len(operands), attributes)
    node.outputs[0].name = "y"
    operation = Operation(node, operands, {"": opset})
    return Engines(pool).whole(operation)
