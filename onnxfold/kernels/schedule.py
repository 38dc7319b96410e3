"""The order in which postponed operations run, and which of them share an onnxruntime session."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.operation import Conversion, Operation, Output
from onnxfold.kernels.registry import Kind
from onnxfold.pool import Buffer


def postponed(buffers: Sequence[Buffer | None]) -> list[Operation]:
    """Return the postponed operations that the buffers need, operands first."""
    order: list[Operation] = []
    seen: set[Operation] = set()
    stack: list[tuple[Operation, bool]] = [
        (b.deferred, False)
        for b in reversed(buffers)
        if b is not None and isinstance(b.deferred, Operation)
    ]
    while stack:
        operation, expanded = stack.pop()
        if expanded:
            order.append(operation)
            continue
        if operation in seen:
            continue
        seen.add(operation)
        stack.append((operation, True))
        for operand in operation.operands:
            if operand is not None and isinstance(operand.deferred, Operation):
                stack.append((operand.deferred, False))
    return order


def phases(
    operations: Sequence[Operation], apart: Collection[Operation] = ()
) -> list[tuple[list[Operation], bool]]:
    """Alternate NumPy and onnxruntime phases, as few as the dependencies allow.

    NumPy operations that lie between two of onnxruntime's run in its session, unless they may
    fail on data: an integer division by zero would end the process there. What holds graphs or is
    a function of the model has a session of its own: if it has to be stopped, nothing else is.

    Args:
        operations: Postponed operations, operands first.
        apart: Those that are no part of a session: as a view, a large result costs nothing.
    """
    if not operations:
        return []
    below: set[Operation] = set()  # has an operation of onnxruntime's among its users
    for operation in reversed(operations):
        if operation in below or operation.kernel is None:
            below.update(
                b.deferred
                for b in operation.operands
                if b is not None and isinstance(b.deferred, Operation)
            )
    level: dict[Operation, int] = {}  # even: NumPy, odd: onnxruntime
    after: dict[Operation, int] = {}  # the level that its users find
    for operation in operations:
        depends = [
            after[b.deferred]
            for b in operation.operands
            if b is not None and isinstance(b.deferred, Operation) and b.deferred in after
        ]
        highest = max(depends, default=0)
        if _is_alone(operation):
            level[operation] = highest + 1 + highest % 2
            after[operation] = level[operation] + 1
            continue
        join = highest % 2 == 1 and operation in below and operation not in apart
        join = join and operation.kind is not Kind.GENERAL and not isinstance(operation, Conversion)
        if operation.kernel is None or join:
            level[operation] = highest if highest % 2 else highest + 1
        else:
            level[operation] = highest if highest % 2 == 0 else highest + 1
        after[operation] = level[operation]
    grouped: dict[tuple[int, int], list[Operation]] = {}
    for operation in operations:
        # a session has one set of opsets: functions may import others than the model
        group = 0 if level[operation] % 2 == 0 else id(operation.opsets)
        if _is_alone(operation):
            group = id(operation)
        grouped.setdefault((level[operation], group), []).append(operation)
    return [(grouped[key], key[0] % 2 == 0) for key in sorted(grouped)]


def _is_alone(operation: Operation) -> bool:
    """Return True for what may run for any time, unless a sequence has to stay in its session."""
    buffers = (*operation.operands, *operation.results)
    return (operation.node.domain != "" or bool(subgraphs_of(operation.node))) and not any(
        b is not None and b.type_proto is not None for b in buffers
    )


def used_outside(operations: Sequence[Operation]) -> list[Output]:
    """Return the results that are used outside these operations.

    A sequence never leaves its session: other sessions compute it again.
    """
    inside: dict[Buffer, int] = {}
    for operation in operations:
        for operand in operation.operands:
            if operand is not None:
                inside[operand] = inside.get(operand, 0) + 1
    return [
        (operation, k)
        for operation in operations
        for k, buffer in enumerate(operation.results)
        if buffer is not None
        and buffer.type_proto is None
        and awaits(buffer, operation)
        and buffer.references > inside.get(buffer, 0)
    ]


def awaits(buffer: Buffer | None, operation: Operation) -> bool:
    """Return True if the buffer is a result that the operation still has to compute."""
    return buffer is not None and buffer.deferred is operation
