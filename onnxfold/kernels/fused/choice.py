"""Which postponed values are never stored: they are computed piece by piece where they are used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Optional

from onnxfold.kernels.fused.movement import FUSABLE, Movement, Movements, kind_of
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind
from onnxfold.kernels.schedule import awaits
from onnxfold.pool import Buffer

# Operations whose operands and results all are smaller (bytes) are computed one by one.
FUSED_FROM = 1 << 18
# Storing a result and reading it again takes longer than to compute so little of it twice.
_MOST_WORK = 1.25


def is_large(operation: Operation) -> bool:
    """True if a result or a postponed operand is worth not being stored."""
    return any(b is not None and _is_large(b) for b in operation.results) or any(
        b is not None and not b.is_known and _is_large(b) for b in operation.operands
    )


def _is_large(buffer: Buffer) -> bool:
    return buffer.nbytes > FUSED_FROM


def is_fusable(operation: Operation) -> bool:
    """True for large element-wise work and views, which any part of can be computed."""
    if operation.captures or not operation.results or not is_large(operation):
        return False
    if any(
        b is not None and (b.type_proto is not None or b.dtype.numpy().hasobject)
        for b in (*operation.operands, *operation.results)
    ):
        return False
    kind = kind_of(operation)
    if kind is Kind.VIEW:
        first, *others = operation.operands
        return first is not None and all(b is None or b.is_known for b in others)
    return kind in FUSABLE


# The stored value that a result is computed for, and how it is moved on the way there.
Way = tuple[Buffer, Optional[Movement]]  # noqa: UP045 (evaluated at run time)


def choose(
    operations: Sequence[Operation],
    targets: Collection[Buffer],
    is_streamed: Callable[[Operation], bool],
    others: Callable[[Buffer], int],
) -> tuple[set[Buffer], set[Buffer]]:
    """The results that need not be stored for the targets to be computed, and those that must be.

    Work is hardly done twice: what is needed in two places, or moved in two ways, or selected more
    than once, is stored, unless what is needed is together not much larger than the whole.

    Args:
        operations: Postponed operations, operands first.
        targets: What is wanted as a whole.
        is_streamed: Tells for an operation that is not fusable whether it reads its first operand
            piece by piece.
        others: How many references a buffer has that are not those of values only.
    """
    movements = Movements()
    ways: dict[Buffer, set[Way]] = {}
    stored = set(targets)
    uses: dict[Buffer, int] = {}
    inlined: set[Buffer] = set()
    for operation in reversed(operations):
        for operand in operation.operands:
            if operand is not None and not operand.is_known:
                uses[operand] = uses.get(operand, 0) + 1
        if not is_fusable(operation):
            streamed = is_streamed(operation)
            for k, operand in enumerate(operation.operands):
                if operand is None or operand.is_known:
                    continue
                if streamed and k == 0:
                    ways.setdefault(operand, set()).add((operand, None))
                else:
                    stored.add(operand)
            continue
        kind = kind_of(operation)
        for index, result in enumerate(operation.results):
            if result is None or not awaits(result, operation):
                continue
            found = ways.pop(result, set())
            outside = others(result) - uses.get(result, 0)
            if result not in stored and _is_cheap(result, found, outside):
                inlined.add(result)
            elif result in stored or found:
                stored.add(result)
                found = {(result, None)}
            for root, movement in found:
                for place, operand in enumerate(operation.operands):
                    if operand is None or operand.is_known or (place and kind is Kind.VIEW):
                        continue
                    if kind is Kind.ASSEMBLED:  # a part: all of it, for this place
                        way: Way = (operand, movements.of_part(operation, place))
                    else:
                        way = (root, movements.of_operand(operation, index, operand, movement))
                    ways.setdefault(operand, set()).add(way)
    return inlined, stored


def _is_cheap(buffer: Buffer, ways: set[Way], outside: int) -> bool:
    """True if computing it where it is needed is hardly more work than computing it once."""
    sizes = [root.size for root, _ in ways]
    return bool(sizes) and sum(sizes) + outside * max(sizes) <= _MOST_WORK * buffer.size
