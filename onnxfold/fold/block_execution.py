"""The computation of large results in blocks, and the selection of the results to store.

Large intermediate constants are not stored if possible. A view has other strides on the same
memory. Element-wise operations and concatenations are computed block by block when their results
are written or stored. Other large results are computed as a whole.

A chain is a graph of expressions: arrays at the leaves, and element-wise operations. Views are not
expressions. A view of an expression is applied to the leaves, which have the shape of the
expression.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

import numpy as np
import onnx_ir as ir

from onnxfold.fold.evaluation import TimeLimit
from onnxfold.fold.operation import Operation, operands_first
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.fold.pool.blocks import KEPT_BYTES, Box, Source, boxes, copy, distance, fast_axis
from onnxfold.fold.pool.buffer import Array
from onnxfold.ops.numpy_kernels import Kind, Postpone, Unfoldable, broadcast_shape
from onnxfold.support import forks
from onnxfold.support.arrays import distinct
from onnxfold.support.forks import cached_property

# An operation is streamed only if a result or a deferred operand has more bytes.
_LARGE_BYTES = 1 << 18
# Maximum bytes of each operand and result in one step. The second-level cache holds a few of them.
_PIECE_BYTES = 1 << 17
# Number of elements along the last axes of a piece whose rows are not contiguous in memory.
_MIN_ROW_ELEMENTS = 64


class Leaf:
    """The elements of a known buffer, as a view with any strides."""

    operands: Sequence[Expression | None] = ()

    def __init__(self, buffer: Buffer, array: Array) -> None:
        self.buffer = buffer
        self.array = array
        self.shape: tuple[int, ...] = array.shape


class Step:
    """An element-wise operation on expressions; None stands for an omitted operand.

    Leaves are broadcast to the shape of the result. All other operands must have this shape.
    """

    def __init__(self, operation: Operation, operands: Sequence[Expression | None]) -> None:
        shape = broadcast_shape(*(e.shape for e in operands if e is not None))
        self.operands = [
            Leaf(e.buffer, np.broadcast_to(e.array, shape)) if isinstance(e, Leaf) else e
            for e in operands
        ]
        self.operation = operation
        self.shape: tuple[int, ...] = shape

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The function that computes the elements of the result from those of the operands."""
        assert self.operation.kernel is not None
        return functools.partial(self.operation.kernel.function, **self.operation.attributes)


Expression = Union[Leaf, Step]  # noqa: UP007 (evaluated at run time)


def apply_view(operation: Operation, index: int, expression: Expression) -> Expression:
    """Return a result of a view operation on an expression, by the index of the result.

    Raises:
        Postpone: The result requires a copy.
    """
    parameters = [None if b is None else b.array() for b in operation.operands[1:]]
    views: dict[Expression, Expression] = {}
    for e in _topological_order(expression):
        if isinstance(e, Leaf):
            views[e] = Leaf(e.buffer, operation.call([e.array, *parameters], max_bytes=0)[index])
        else:
            views[e] = Step(e.operation, [None if o is None else views[o] for o in e.operands])
    return views[expression]


def _topological_order(expression: Expression) -> list[Expression]:
    """Return an expression and all its operands, each once, operands first."""
    return operands_first([expression], lambda e: [o for o in e.operands if o is not None])


class Chain:
    """A `Source` that computes an expression block by block.

    If ``compact``, axes along which all elements repeat have extent 1.
    """

    def __init__(
        self, expression: Expression, dtype: ir.DataType, *, compact: bool = False
    ) -> None:
        order = _topological_order(expression)
        self._order = order
        self.dtype = dtype
        self._leaves = [e for e in order if isinstance(e, Leaf)]
        self.shape: tuple[int, ...] = tuple(
            1 if compact and all(e.array.strides[axis] == 0 for e in self._leaves) else extent
            for axis, extent in enumerate(expression.shape)
        )
        nbytes = {e: distinct(e.array).nbytes for e in self._leaves}
        self.read_bytes: int = sum(nbytes.values())
        self.fast_axis: int = fast_axis(max(self._leaves, key=nbytes.__getitem__).array)
        itemsizes = [e.array.itemsize for e in self._leaves]
        self._piece = _PIECE_BYTES // max(dtype.numpy().itemsize, *itemsizes, 1)
        last_uses: dict[Expression, Expression] = {}
        for e in order:
            for operand in e.operands:
                if operand is not None:
                    last_uses[operand] = e
        # for each expression, the operands that later expressions do not use
        self._unused: dict[Expression, list[Expression]] = {}
        for operand, consumer in last_uses.items():
            self._unused.setdefault(consumer, []).append(operand)
        self._touched_bytes = 0
        self._lock = forks.Lock()

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``, an array with any strides."""
        root = self._order[-1]
        if isinstance(root, Leaf):
            copy(target, self._read(root, box))
            return
        with np.errstate(all="ignore"):  # the setting is per thread
            for piece in boxes(target.shape, self._piece, self.fast_axis, _MIN_ROW_ELEMENTS):
                inner = tuple(
                    slice(b.start + p.start, b.start + p.stop)
                    for b, p in zip(box, piece, strict=True)
                )
                copy(target[piece], self._compute(inner))

    def _compute(self, box: Box) -> Array:
        """Return the elements in a box, with extent 1 along axes where they repeat."""
        arrays: dict[Expression | None, Any] = {None: None}
        for expression in self._order:
            if isinstance(expression, Leaf):
                arrays[expression] = distinct(self._read(expression, box))
            else:
                arrays[expression] = expression.call(*[arrays[o] for o in expression.operands])
            for operand in self._unused.get(expression, ()):
                del arrays[operand]
        return np.asarray(arrays[self._order[-1]])

    def _read(self, expression: Leaf, box: Box) -> Array:
        """Return the part of a leaf in a box.

        After about `KEPT_BYTES` bytes are read, the mapped pages are released.
        """
        part = expression.array[box]
        # after a strided read, the next blocks read the other elements of the same pages
        is_dense = distance(part) <= 4 * part.nbytes
        with self._lock:
            self._touched_bytes += part.nbytes if is_dense else part.nbytes // 4
            is_due = self._touched_bytes > KEPT_BYTES
            if is_due:
                self._touched_bytes = 0
        if is_due:
            self.release()
        return part

    def release(self) -> None:
        """Release the mapped pages that were read."""
        for expression in self._leaves:
            expression.buffer.release_pages()


class Joined:
    """A `Source` that concatenates chains along an axis."""

    def __init__(self, parts: Sequence[Chain], axis: int) -> None:
        self._parts = parts
        self._axis = axis
        first = parts[0]
        self.dtype = first.dtype
        self.fast_axis: int = first.fast_axis
        self.read_bytes: int = sum(part.read_bytes for part in parts)
        length = sum(part.shape[axis] for part in parts)
        self.shape: tuple[int, ...] = (*first.shape[:axis], length, *first.shape[axis + 1 :])

    def fill(self, box: Box, target: Array) -> None:
        """Write the elements in a box into ``target``, an array with any strides."""
        axis = self._axis
        end = 0
        for part in self._parts:
            start = end
            end = start + part.shape[axis]
            low = max(box[axis].start, start)
            high = min(box[axis].stop, end)
            if low < high:
                inner = (*box[:axis], slice(low - start, high - start), *box[axis + 1 :])
                begin = low - box[axis].start
                outer = (*(slice(None),) * axis, slice(begin, begin + high - low))
                part.fill(inner, target[outer])

    def release(self) -> None:
        """Release the mapped pages that were read."""
        for part in self._parts:
            part.release()


class Streams:
    """The block-by-block computation of those deferred operations that are streamable.

    Args:
        pool: The pool that stores results.
        time: The limit of the CPU time.
        operations: The deferred operations, operands first.
        required: The results to store.
        root: A result of the last operation. It is not stored, because the caller reads it block by
            block. None if all results of interest are stored.
    """

    def __init__(
        self,
        pool: Pool,
        time: TimeLimit,
        operations: Sequence[Operation],
        required: Iterable[Buffer],
        root: Buffer | None,
    ) -> None:
        self._pool = pool
        self._time = time
        self._root = root
        self.failures: dict[Operation, str] = {}
        """The operations that cannot be computed, with the reasons."""
        self.operations = {o for o in operations if is_streamable(o)}
        """The operations that :meth:`compute` computes."""
        self._stored = self._results_to_store(operations, required)
        self._expressions: dict[Buffer, Expression] = {}
        self._joined: Joined | None = None

    def _results_to_store(
        self, operations: Sequence[Operation], required: Iterable[Buffer]
    ) -> set[Buffer]:
        """Return the required results and the intermediate results that must be stored.

        An intermediate result is stored if it would be computed more than once, or if it has uses
        outside of the operations. It is also stored if a consumer cannot read it block by block.
        """
        uses: dict[Buffer, list[Operation]] = {}
        for operation in operations:
            for operand in operation.operands:
                if operand is not None:
                    uses.setdefault(operand, []).append(operation)
        stored = set(required)
        # The last result of the chain that computes each result. Consumers with the same shape in
        # the same chain read the operand once.
        chains: dict[Buffer, Buffer] = {}
        for operation in reversed(operations):
            for result in operation.results:
                if result is None or operation not in self.operations:
                    continue
                chains[result] = result
                consumers = uses.get(result, [])
                if result in stored or not consumers:
                    continue
                consumer_chains = {
                    self._chain_of(consumer, result, chains) for consumer in consumers
                }
                if (
                    len(consumer_chains) > 1
                    or None in consumer_chains
                    or result.references > len(consumers)
                ):
                    stored.add(result)
                else:
                    chains[result] = consumer_chains.pop() or result
        return stored

    def _chain_of(
        self, consumer: Operation, operand: Buffer, chains: dict[Buffer, Buffer]
    ) -> Buffer | None:
        """Return the buffer that identifies the chain in which a consumer reads an operand.

        The result is None if the operand must be stored.
        """
        result = next((b for b in consumer.results if b is not None), None)
        if consumer not in self.operations or result is None:
            return None
        if consumer.kind is not Kind.ELEMENTWISE:
            return operand if consumer.operands.count(operand) == 1 else None
        return chains.get(result) if result.shape == operand.shape else None

    def compute(self, operation: Operation) -> None:
        """Compute the results of an operation that are stored, and record how to compute others.

        If an operand failed, nothing is computed. A failure of the operation is added to
        `failures`.
        """
        operands: list[Expression | None] = []
        for buffer in operation.operands:
            if buffer is None:
                operands.append(None)
            elif buffer.is_known:
                operands.append(Leaf(buffer, buffer.array()))
            elif buffer in self._expressions:
                operands.append(self._expressions[buffer])
            else:
                return  # the operand failed
        try:
            for index, result in operation.pending_results():
                self._compute_result(operation, operands, index, result)
        except Unfoldable as error:
            self.failures[operation] = str(error)

    def _compute_result(
        self,
        operation: Operation,
        operands: Sequence[Expression | None],
        index: int,
        result: Buffer,
    ) -> None:
        expression: Expression
        if operation.kind is Kind.ASSEMBLED:
            parts = [
                Chain(e, b.dtype)
                for b, e in zip(operation.operands, operands, strict=True)
                if b is not None and e is not None and b.size
            ]
            joined = Joined(parts, operation.attributes["axis"] % len(result.shape))
            if result is self._root:
                self._joined = joined
            else:
                self._store(result, joined)
            return
        if operation.kind is Kind.ELEMENTWISE:
            expression = Step(operation, operands)
        else:
            first = operation.operands[0]
            operand = operands[0]
            assert first is not None and operand is not None
            try:
                expression = apply_view(operation, index, operand)
            except Postpone:  # a reshape that needs a copy keeps the order of the elements
                expression = operand
                if result is not self._root:
                    self._store(result, Chain(expression, result.dtype))
                    return
            else:
                if isinstance(expression, Leaf) and first.is_known:
                    self._pool.fulfil(result, expression.array)
                    return
        if result in self._stored:
            self._store(result, Chain(expression, result.dtype, compact=True))
        else:
            self._expressions[result] = expression

    def _store(self, buffer: Buffer, source: Source) -> None:
        nbytes = math.prod(source.shape) * buffer.dtype.numpy().itemsize
        if self._root is None and nbytes > self._time.nbytes:
            raise Unfoldable(f"computing {nbytes:,} bytes takes too long")
        with self._time.spending():
            array = self._pool.store(source)
        if array.size == buffer.size:
            array = array.reshape(buffer.shape)
        else:
            array = np.broadcast_to(array, buffer.shape)
        self._pool.fulfil(buffer, array)

    def source(self, root: Buffer) -> Source | None:
        """Return the source of the root; None if the root is known."""
        expression = self._expressions.get(root)
        return self._joined if expression is None else Chain(expression, root.dtype)


def is_large(operation: Operation) -> bool:
    """Return whether a result or a deferred operand of an operation is large."""
    return any(b is not None and b.nbytes > _LARGE_BYTES for b in operation.results) or any(
        b is not None and not b.is_known and b.nbytes > _LARGE_BYTES for b in operation.operands
    )


def is_streamable(operation: Operation) -> bool:
    """Return whether an operation is large and its results can be computed block by block."""
    if operation.captures or not operation.results or not is_large(operation):
        return False
    for buffer in (*operation.operands, *operation.results):
        if buffer is not None and buffer.dtype.numpy().hasobject:
            return False
    if any(b is not None and not b.size for b in operation.results):
        return False
    if operation.kind is Kind.VIEW:
        first, *parameters = operation.operands
        return first is not None and all(b is None or b.is_known for b in parameters)
    return operation.kind in (Kind.ELEMENTWISE, Kind.ASSEMBLED)
