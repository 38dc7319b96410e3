"""The order in which postponed operations run, and which of them share an onnxruntime session."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.operation import Operation, Output
from onnxfold.pool import Buffer, Deferred


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


def phases(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Return what is computed together, in order: an operation of NumPy, or those of a session.

    There are as few sessions as the dependencies allow. What holds graphs or is a function of the
    model has a session of its own: if it has to be stopped, nothing else is.

    Args:
        operations: Postponed operations, operands first.
    """
    placed: dict[Deferred | None, tuple[int, int]] = {}  # level, odd for sessions, and group
    grouped: dict[tuple[int, int], list[Operation]] = {}
    for operation in operations:
        is_alone = operation.kernel is not None or _is_alone(operation)
        # a session has one set of opsets: functions may import others than the model
        group = id(operation if is_alone else operation.opsets)
        highest = 0
        for buffer in operation.operands:
            if buffer is not None and (found := placed.get(buffer.deferred)) is not None:
                level, other = found
                highest = max(highest, level if other == group else level + level % 2)
        key = placed[operation] = (highest if operation.kernel is not None else highest | 1, group)
        grouped.setdefault(key, []).append(operation)
    return [grouped[key] for key in sorted(grouped, key=lambda key: key[0])]


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
