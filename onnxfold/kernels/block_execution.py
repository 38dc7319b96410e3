"""Compute large results block by block, and choose those that are stored.

Large intermediate constants are not stored if possible: a view is other strides on the same memory,
and element-wise work is done block by block where its result is written or stored (:mod:`.chains`).
All other large results are computed whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from onnxfold.evaluation import TimeLimit
from onnxfold.kernels.elementwise_chains import (
    Chain,
    Expression,
    Joined,
    Leaf,
    Step,
    is_joined,
    viewed,
)
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind, Postpone, Unfoldable
from onnxfold.pool import Buffer, Pool

# Operations whose operands and results are all smaller (bytes) are computed one by one.
_LARGE = 1 << 18
_STREAMED = (Kind.VIEW, Kind.ELEMENTWISE, Kind.ASSEMBLED)


class Streams:
    """A run of postponed operations.

    Args:
        pool: The pool of the operands and results.
        time: The limit of the time to compute.
        operations: Postponed operations, operands first.
        wanted: Results that must be stored.
        root: A result of the last operation that is wanted block by block.
    """

    def __init__(
        self,
        pool: Pool,
        time: TimeLimit,
        operations: Sequence[Operation],
        wanted: Iterable[Buffer],
        root: Buffer | None,
    ) -> None:
        self._pool = pool
        self._time = time
        self._root = root
        self.failures: dict[Operation, str] = {}
        """The operations that cannot be computed, with the reasons."""
        self.operations = {o for o in operations if is_streamable(o)}
        """The operations that :meth:`make` computes."""
        self._stored = self._to_store(operations, wanted)
        self._expressions: dict[Buffer, Expression] = {}

    def _to_store(self, operations: Sequence[Operation], wanted: Iterable[Buffer]) -> set[Buffer]:
        """Return the results to store: the wanted ones, and those that would be computed more than
        once.
        """
        uses: dict[Buffer, list[Operation]] = {}
        for operation in operations:
            for operand in operation.operands:
                if operand is not None:
                    uses.setdefault(operand, []).append(operation)
        stored = set(wanted)
        # users of the same shape in the same chain read the operand once
        chains: dict[Buffer, Buffer] = {}
        for operation in reversed(operations):
            for result in operation.results:
                if result is None or operation not in self.operations:
                    continue
                chains[result] = result
                users = uses.get(result, [])
                if result in stored or not users:
                    continue
                found = {self._chain_of(user, result, chains) for user in users}
                if len(found) > 1 or None in found or result.references > len(users):
                    stored.add(result)
                else:
                    chains[result] = found.pop() or result
        return stored

    def _chain_of(
        self, user: Operation, operand: Buffer, chains: dict[Buffer, Buffer]
    ) -> Buffer | None:
        """Return the chain of a user; None if the user requires the stored operand."""
        result = next((b for b in user.results if b is not None), None)
        if user not in self.operations or result is None:
            return None
        if user.kind is not Kind.ELEMENTWISE:
            return operand if user.operands.count(operand) == 1 else None
        return chains.get(result) if result.shape == operand.shape else None

    def make(self, operation: Operation) -> None:
        """Compute the stored results of an operation; record how to compute the others."""
        operands: list[Expression | None] = []
        for buffer in operation.operands:
            if buffer is None:
                operands.append(None)
            elif buffer.is_known:
                operands.append(Leaf(buffer, buffer.array()))
            elif buffer in self._expressions:
                operands.append(self._expressions[buffer])
            else:
                return  # it has failed
        try:
            for index, result in operation.awaited():
                self._make(operation, operands, index, result)
        except Unfoldable as error:
            self.failures[operation] = str(error)

    def _make(
        self,
        operation: Operation,
        operands: Sequence[Expression | None],
        index: int,
        result: Buffer,
    ) -> None:
        expression: Expression
        if operation.kind is Kind.ELEMENTWISE:
            expression = Step(operation, operands)
        elif operation.kind is Kind.ASSEMBLED:
            parts = [
                Chain(self._without_joined(b, e), b.dtype)
                for b, e in zip(operation.operands, operands, strict=True)
                if b is not None and e is not None and b.size
            ]
            expression = Joined(parts, operation.attributes["axis"] % len(result.shape))
        else:
            first, operand = operation.operands[0], operands[0]
            assert first is not None and operand is not None
            operand = self._without_joined(first, operand)
            try:
                expression = viewed(operation, index, operand)
            except Postpone:  # strides cannot express it; the elements are in the same order
                expression = operand
                if result is not self._root:
                    self._store(result, expression)
                    return
            else:
                if isinstance(expression, Leaf) and first.is_known:
                    self._pool.fulfil(result, expression.array)
                    return
        if result in self._stored:
            self._store(result, expression)
        else:
            self._expressions[result] = expression

    def _without_joined(self, buffer: Buffer, expression: Expression) -> Expression:
        """Return an expression without concatenations; the result of one with them is stored."""
        if buffer.is_known or not is_joined(expression):
            return expression
        self._store(buffer, expression)
        return Leaf(buffer, buffer.array())

    def _store(self, buffer: Buffer, expression: Expression) -> None:
        source = Chain(expression, buffer.dtype, compact=expression.shape == buffer.shape)
        if self._root is None and source.nbytes > self._time.nbytes:
            raise Unfoldable(f"it would take too long to compute {source.nbytes:,} bytes")
        with self._time.spending():
            array = self._pool.store(source)
        if array.size == buffer.size:
            array = array.reshape(buffer.shape)
        else:
            array = np.broadcast_to(array, buffer.shape)
        self._pool.fulfil(buffer, array)

    def chain(self, buffer: Buffer) -> Chain | None:
        """Return the chain that computes the root; None if the root is known."""
        expression = self._expressions.get(buffer)
        return None if expression is None else Chain(expression, buffer.dtype)


def is_large(operation: Operation) -> bool:
    """Return whether a result or a postponed operand is too large to be stored without need."""
    return any(b is not None and b.nbytes > _LARGE for b in operation.results) or any(
        b is not None and not b.is_known and b.nbytes > _LARGE for b in operation.operands
    )


def is_streamable(operation: Operation) -> bool:
    """Return whether an operation is large and its result can be computed block by block."""
    if operation.captures or not operation.results or not is_large(operation):
        return False
    for buffer in (*operation.operands, *operation.results):
        if buffer is not None and buffer.dtype.numpy().hasobject:
            return False
    if any(b is not None and not b.size for b in operation.results):
        return False
    if operation.kind is Kind.VIEW:
        first, *others = operation.operands
        return first is not None and all(b is None or b.is_known for b in others)
    return operation.kind in _STREAMED
