"""Sums over all elements in the order of onnxruntime, while the elements come in pieces.

onnxruntime adds up (by Eigen's ``sum``, ``prod``, ``squaredNorm``) in a fixed order: two SIMD
registers take turns, then are combined, one more register's worth follows, the register is folded
in halves, and what is left over comes last. How wide the registers are is found out, and the order
checked, by asking onnxruntime for a few sums of random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import FLOAT16, FLOAT32, FLOAT64, DType
from onnxfold.kernels.engines import Engines
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import NotExact
from onnxfold.pool import Pool
from onnxfold.pool.buffer import Array

COMPUTED_IN: dict[DType, DType] = {FLOAT16: FLOAT32, FLOAT32: FLOAT32, FLOAT64: FLOAT64}
"""For the dtypes that can be summed: the one that onnxruntime computes in."""

_REGISTERS = (16, 32, 64)  # bytes
_SAMPLES = (1003, 40_013)


@dataclass(frozen=True)
class Sum:
    """Folds ``prepare`` of all elements by ``combine``; ``finish`` takes that and their number."""

    combine: Any
    prepare: Callable[..., Any] | None = None
    finish: Callable[[Any, Any], Any] | None = None


SUMS = {
    "ReduceSum": Sum(np.add),
    "ReduceMean": Sum(np.add, finish=np.divide),
    "ReduceSumSquare": Sum(np.add, np.square),
    "ReduceL1": Sum(np.add, np.abs),
    "ReduceL2": Sum(np.add, np.square, lambda total, count: np.sqrt(total)),
    "ReduceProd": Sum(np.multiply),
}


def room_for(dtype: DType, register: int) -> int:
    """How many elements of no value each piece needs at its front."""
    return 2 * register // COMPUTED_IN[dtype].itemsize


def fold(op_type: str, pieces: Iterable[Array], dtype: DType, register: int) -> Any:
    """The result of a reduction over all elements.

    Args:
        op_type: One of ``SUMS``.
        pieces: The elements in order, in flat arrays of the dtype it is computed in, each behind
            :func:`room_for` elements of no value. They are overwritten.
        dtype: The elements' own dtype.
        register: Bytes of a SIMD register.

    Returns:
        A scalar in the dtype it is computed in.
    """
    way = SUMS[op_type]
    lanes = room_for(dtype, register)
    total: Array | None = None
    rest = np.empty(0, COMPUTED_IN[dtype])
    count = 0
    for piece in pieces:
        elements = piece[lanes:]
        count += elements.size
        if way.prepare is not None:
            way.prepare(elements, out=elements)
        if rest.size:
            piece = np.concatenate([piece[:lanes], rest, elements])
        stop = piece.size // lanes * lanes
        rest = piece[stop:].copy()
        if total is not None:
            piece[:lanes] = total
        elif stop > lanes:
            piece, stop = piece[lanes:], stop - lanes
        if stop > lanes or total is None:
            # along the first axis NumPy goes row by row, each lane in order
            total = way.combine.reduce(piece[:stop].reshape(-1, lanes), axis=0)
    if total is None:
        raise NotExact("fewer elements than two registers hold")
    return _finished(way, total, rest, count)


def _finished(way: Sum, lanes: Array, rest: Array, count: int) -> Any:
    width = lanes.size // 2
    register = way.combine(lanes[:width], lanes[width:])
    if rest.size >= width:
        register, rest = way.combine(register, rest[:width]), rest[width:]
    while register.size > 1:
        half = register.size // 2
        register = way.combine(register[:half], register[half:])
    result = register[0]
    for element in rest:
        result = way.combine(result, element)
    return result if way.finish is None else way.finish(result, result.dtype.type(count))


@functools.cache
def register_of(op_type: str, opset: int, dtype: DType) -> int:
    """Bytes of the registers that this onnxruntime sums in.

    Raises:
        NotExact: it has no such kernel, or sums in another order.
    """
    rng = np.random.default_rng(0)
    fitting = set(_REGISTERS)
    for count in _SAMPLES:
        sample = rng.standard_normal(count).astype(dtype)
        if SUMS[op_type].combine is np.multiply:
            sample = np.exp(sample / 8).astype(dtype)
        expected = _by_onnxruntime(op_type, opset, sample)
        fitting = {r for r in fitting if _matches(op_type, sample, expected, r)}
    if len(fitting) != 1:
        raise NotExact(f"{op_type}: onnxruntime sums in an order of its own")
    return fitting.pop()


def _matches(op_type: str, sample: Array, expected: Array, register: int) -> bool:
    room = room_for(sample.dtype, register)
    wide = sample.astype(COMPUTED_IN[sample.dtype])
    pieces = [np.concatenate([wide[:room], part]) for part in (wide[:700], wide[700:])]
    result = fold(op_type, pieces, sample.dtype, register)
    return np.asarray(result).astype(sample.dtype).tobytes() == expected.tobytes()


def _by_onnxruntime(op_type: str, opset: int, sample: Array) -> Array:
    pool = Pool()
    buffer = pool.adopt(sample, ir.DataType.from_numpy(sample.dtype))
    node = ir.node(op_type, [None], {"keepdims": 0})
    node.outputs[0].name = "y"
    operation = Operation(node, [buffer], {"": opset})
    return Engines(pool).whole(operation)
