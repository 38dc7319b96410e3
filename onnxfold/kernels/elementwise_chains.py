"""Chains of element-wise work, views and concatenations, computed block by block.

A chain is a graph of expressions. Views are not expressions: they are applied to the arrays at the
leaves, which are broadcast to the viewed shape first.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import broadcast_shape
from onnxfold.kernels.operation import Operation, operands_first
from onnxfold.pool import Buffer
from onnxfold.pool.blocks import KEPT_BYTES, Box, boxes, copy, distance, fast_axis
from onnxfold.pool.buffer import Array, distinct

# Bytes that a step reads and writes at a time: a few of these fit the second-level cache.
_PIECE = 1 << 17
# Elements along the row in a piece where rows and columns are exchanged.
_COLUMNS = 64


class Leaf:
    """The elements of a known buffer, as a view with any strides."""

    def __init__(self, buffer: Buffer, array: Array) -> None:
        self.buffer = buffer
        self.array = array
        self.shape: tuple[int, ...] = array.shape


class Step:
    """An element-wise operation; omitted operands are None, broadcast operands are leaves."""

    def __init__(self, operation: Operation, operands: Sequence[Expression | None]) -> None:
        shape = broadcast_shape(*(e.shape for e in operands if e is not None))
        self.operands = [
            Leaf(e.buffer, np.broadcast_to(e.array, shape)) if isinstance(e, Leaf) else e
            for e in operands
        ]
        self.operation = operation
        self.shape: tuple[int, ...] = shape

    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        """The function that computes the elements from arrays of the operands."""
        kernel, node = self.operation.kernel, self.operation.node
        assert kernel is not None
        arguments = kernel.arguments(
            self.operation.attributes, n_outputs=len(node.outputs), opset=self.operation.opset
        )
        return functools.partial(kernel.function, **arguments)


class Joined:
    """Expressions concatenated along an axis."""

    def __init__(self, parts: Sequence[Chain], axis: int) -> None:
        self.parts = parts
        self.axis = axis
        self.dtype = parts[0].dtype.numpy()
        first = parts[0].shape
        length = sum(part.shape[axis] for part in parts)
        self.shape: tuple[int, ...] = (*first[:axis], length, *first[axis + 1 :])

    def fill(self, box: Box, target: Array) -> None:
        """Write the elements in a box into ``target``."""
        axis, end = self.axis, 0
        for part in self.parts:
            start, end = end, end + part.shape[axis]
            low, high = max(box[axis].start, start), min(box[axis].stop, end)
            if low < high:
                inner = (*box[:axis], slice(low - start, high - start), *box[axis + 1 :])
                begin = low - box[axis].start
                place = (*(slice(None),) * axis, slice(begin, begin + high - low))
                part.fill(inner, target[place])


Expression = Union[Leaf, Step, Joined]  # noqa: UP007 (evaluated at run time)


def viewed(operation: Operation, index: int, expression: Expression) -> Expression:
    """Return the view of an expression by an operation.

    Raises:
        Postpone: The result is not a view.
    """
    others = [None if b is None else b.array() for b in operation.operands[1:]]
    made: dict[Expression, Expression] = {}
    for e in _in_order(expression):
        assert not isinstance(e, Joined), "a concatenation that is viewed is stored first"
        if isinstance(e, Leaf):
            made[e] = Leaf(e.buffer, operation.call([e.array, *others], most_bytes=0)[index])
        else:
            made[e] = Step(e.operation, [None if o is None else made[o] for o in e.operands])
    return made[expression]


def is_joined(expression: Expression) -> bool:
    """Return whether an expression contains a concatenation."""
    return any(isinstance(e, Joined) for e in _in_order(expression))


def _in_order(expression: Expression) -> list[Expression]:
    """Return an expression and all its operands, each once, operands first."""
    return operands_first([expression], lambda e: [o for o in _operands(e) if o is not None])


class Chain:
    """Computes an expression block by block for the pool: :class:`onnxfold.pool.blocks.Source`.

    Args:
        expression: The expression.
        dtype: Its dtype.
        compact: Whether axes along which all its elements repeat get extent 1.
    """

    def __init__(
        self, expression: Expression, dtype: ir.DataType, *, compact: bool = False
    ) -> None:
        order = _in_order(expression)
        self.dtype = dtype
        self._leaves = [e for e in order if isinstance(e, Leaf)]
        self._parts = [part for e in order if isinstance(e, Joined) for part in e.parts]
        shape = list(expression.shape)
        if compact and not self._parts:
            for axis in range(len(shape)):
                if all(e.array.strides[axis] == 0 for e in self._leaves):
                    shape[axis] = 1
        self.shape: tuple[int, ...] = tuple(shape)
        nbytes = {e: distinct(e.array).nbytes for e in self._leaves}
        self.read_bytes: int = sum(nbytes.values()) + sum(part.read_bytes for part in self._parts)
        if self._parts:
            self.fast_axis: int = self._parts[0].fast_axis
        else:
            self.fast_axis = fast_axis(max(self._leaves, key=nbytes.__getitem__).array)
        itemsizes = [e.array.itemsize for e in self._leaves]
        self._piece = _PIECE // max(dtype.numpy().itemsize, *itemsizes, 1)
        self._order = order
        self._unused: dict[Expression, list[Expression]] = {}
        for operand, user in {o: e for e in order for o in _operands(e) if o is not None}.items():
            self._unused.setdefault(user, []).append(operand)
        self._touched = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the result as an array."""
        return math.prod(self.shape) * int(self.dtype.numpy().itemsize)

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``, an array of any strides."""
        root = self._order[-1]
        if isinstance(root, Joined):
            root.fill(box, target)
            return
        if isinstance(root, Leaf):
            copy(target, self._read(root, box))
            return
        with np.errstate(all="ignore"):  # the setting is per thread
            for piece in boxes(target.shape, self._piece, self.fast_axis, _COLUMNS):
                inner = tuple(
                    slice(b.start + p.start, b.start + p.stop)
                    for b, p in zip(box, piece, strict=True)
                )
                copy(target[piece], self._compute(inner))

    def _compute(self, box: Box) -> Array:
        """Return the elements in a box, with extent 1 along axes where they repeat."""
        made: dict[Expression | None, Any] = {None: None}
        for expression in self._order:
            if isinstance(expression, Leaf):
                made[expression] = distinct(self._read(expression, box))
            elif isinstance(expression, Joined):
                made[expression] = np.empty([s.stop - s.start for s in box], expression.dtype)
                expression.fill(box, made[expression])
            else:
                made[expression] = expression.call(*[made[o] for o in expression.operands])
            for operand in self._unused.get(expression, ()):
                del made[operand]
        return np.asarray(made[self._order[-1]])

    def _read(self, expression: Leaf, box: Box) -> Array:
        """Return the part of a leaf in a box; release pages after many bytes."""
        part = expression.array[box]
        # a strided read leaves parts of its pages, which are read soon
        is_dense = distance(part) <= 4 * part.nbytes
        with self._lock:
            self._touched += part.nbytes if is_dense else part.nbytes // 4
            is_time = self._touched > KEPT_BYTES
            if is_time:
                self._touched = 0
        if is_time:
            self.release()
        return part

    def release(self) -> None:
        """Release the mapped pages that were read."""
        for expression in self._leaves:
            expression.buffer.release_pages()
        for part in self._parts:
            part.release()


def _operands(expression: Expression) -> Sequence[Expression | None]:
    return expression.operands if isinstance(expression, Step) else ()
