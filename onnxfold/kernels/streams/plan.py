"""What is computed box by box where it is used, and what is stored first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind
from onnxfold.kernels.schedule import awaits
from onnxfold.kernels.selection import Padding, Picks
from onnxfold.kernels.streams import by_onnxruntime
from onnxfold.kernels.streams.moved import merges
from onnxfold.kernels.streams.reductions import is_in_pieces
from onnxfold.kernels.streams.views import keeps_order
from onnxfold.pool import Buffer

# Operations whose operands and results all are smaller (bytes) are computed one by one.
STREAMED_FROM = 1 << 18
# Storing a result and reading it again takes longer than to compute so little of it twice.
_MOST_WORK = 1.25
# So many sources may lie between two element-wise ones before a value is stored.
_DEEPEST = 16

# What is selected lies all over more bytes than these, each place in less than a page.
_SCATTERED_FROM = 1 << 24
_PAGE = 1 << 12

_STREAMED = (Kind.VIEW, Kind.SELECTED, Kind.ELEMENTWISE, Kind.ASSEMBLED)


@dataclass
class StreamPlan:
    """How postponed operations are computed."""

    streamed: set[Operation] = field(default_factory=set)
    """Any region of their results can be computed by itself."""
    reduced: set[Operation] = field(default_factory=set)
    """Reductions that read their operand box by box."""
    inlined: set[Buffer] = field(default_factory=set)
    """Results that are computed where they are used and not stored."""
    stored: set[Buffer] = field(default_factory=set)
    """Results of streamed operations that are stored."""


# Where a value is used: a stored value or a part of one, and what it goes through up to there.
_Way = tuple[object, ...]


def make_plan(
    operations: Sequence[Operation],
    wanted: Sequence[Buffer],
    streamed: Buffer | None,
    references: Callable[[Buffer], int],
) -> StreamPlan:
    """Say how postponed operations are computed.

    Work is hardly done twice: what is needed in two places, or moved in two ways, or selected more
    than once, is stored, unless what is needed is together not much larger than the whole.

    Args:
        operations: Postponed operations, operands first.
        wanted: Results that are wanted as a whole.
        streamed: A result of a further operation, which is wanted box by box.
        references: How many users a buffer is sure to have, those in the operations among them.
    """
    plan = StreamPlan(reduced={o for o in operations if is_in_pieces(o)})
    everything, targets = list(operations), set(wanted)
    if streamed is not None:
        assert isinstance(streamed.deferred, Operation)
        everything.append(streamed.deferred)
        targets.add(streamed)
    if not plan.reduced and not any(is_large(operation) for operation in everything):
        return plan
    plan.streamed = {o for o in everything if is_streamable(o)}
    stored = plan.stored
    stored |= targets
    for operation in plan.streamed:
        if reads_all_over(operation):
            stored.update(b for b in (*operation.operands[:1], *operation.results) if b is not None)
    uses: dict[Buffer, int] = {}
    ways: dict[Buffer, dict[_Way, int]] = {}  # elements that are needed
    for operation in reversed(everything):
        for operand in operation.operands:
            if operand is not None and not operand.is_known:
                uses[operand] = uses.get(operand, 0) + 1
        if operation not in plan.streamed:
            for k, operand in enumerate(operation.operands):
                if operand is None or operand.is_known:
                    continue
                if operation in plan.reduced and k == 0:
                    ways.setdefault(operand, {})[(operation,)] = operand.size
                else:
                    stored.add(operand)
            continue
        for index, result in enumerate(operation.results):
            if result is None or not awaits(result, operation):
                continue
            found = ways.pop(result, {})
            others = references(result) - uses.get(result, 0)
            if result not in stored and _is_cheap(result, operation, found, others):
                plan.inlined.add(result)
            elif result in stored or found:
                stored.add(result)
                found = {(result,): result.size}
            for way, size in found.items():
                for place, operand in enumerate(operation.operands):
                    if operand is not None and not operand.is_known:
                        below, needed = _way_below(operation, index, place, way, size)
                        ways.setdefault(operand, {})[below] = needed
    return plan


def _way_below(
    operation: Operation, index: int, place: int, way: _Way, size: int
) -> tuple[_Way, int]:
    """Where an operand is used, and how many elements of it, if the result is used so."""
    kind = kind_of(operation)
    operand, result = operation.operands[place], operation.results[index]
    assert operand is not None and result is not None
    if kind is Kind.ELEMENTWISE and operand.shape == result.shape:
        return way, size
    if kind is Kind.ASSEMBLED:  # a part: all of it
        size = operand.size
    return (*way, operation, index, place), size


def _is_cheap(buffer: Buffer, operation: Operation, ways: dict[_Way, int], others: int) -> bool:
    """True if computing it where it is needed is hardly more work than computing it once."""
    sizes = ways.values()
    if not sizes or sum(sizes) + others * max(sizes) > _MOST_WORK * buffer.size:
        return False
    if max(map(len, ways)) > 3 * _DEEPEST:
        return False
    first = operation.operands[0]
    if kind_of(operation) is not Kind.VIEW or first is None:
        return True
    # a list of places along an axis would be many boxes of the axes that it is made of
    return not (
        any(map(_is_picked, ways))
        and keeps_order(operation, buffer)
        and merges(first.shape, buffer.shape)
    )


def _is_picked(way: _Way) -> bool:
    return any(isinstance(use, Operation) and isinstance(use.selection, Picks) for use in way)


def reads_all_over(operation: Operation) -> bool:
    """True if it selects places that are smaller than pages, anywhere in a large operand.

    Boxes of the result would each read most pages of the operand: they should be few.
    """
    first = operation.operands[0] if operation.operands else None
    if first is None or not isinstance(operation.selection, Picks):
        return False
    listed = [axis for axis, places in enumerate(operation.selection.places) if places is not None]
    if not listed:
        return False
    place = math.prod(first.shape[listed[0] + 1 :]) * first.dtype.numpy().itemsize
    return place < _PAGE and place * first.shape[listed[0]] > _SCATTERED_FROM


def is_large(operation: Operation) -> bool:
    """True if a result or a postponed operand is worth not being stored."""
    return any(b is not None and _is_large(b) for b in operation.results) or any(
        b is not None and not b.is_known and _is_large(b) for b in operation.operands
    )


def _is_large(buffer: Buffer) -> bool:
    return buffer.nbytes > STREAMED_FROM


def is_streamable(operation: Operation) -> bool:
    """True for large work of which any region can be computed by itself."""
    if operation.captures or not operation.results or not is_large(operation):
        return False
    for buffer in (*operation.operands, *operation.results):
        if buffer is not None and (buffer.type_proto is not None or buffer.dtype.numpy().hasobject):
            return False
    if any(b is not None and not b.size for b in operation.results):
        return False
    kind = kind_of(operation)
    if kind is Kind.VIEW:
        first, *others = operation.operands
        return first is not None and all(b is None or b.is_known for b in others)
    return kind in _STREAMED


def kind_of(operation: Operation) -> Kind:
    """The kind of the operation's kernel for its operands; without one, that of onnxruntime's.

    Of what selects, it is that of what is done: to pad is to assemble.
    """
    if operation.kernel is None:
        if operation.computes_pieces is None:
            operation.computes_pieces = by_onnxruntime.computes_pieces(operation)
        return Kind.ELEMENTWISE if operation.computes_pieces else Kind.GENERAL
    kind = operation.kind
    if kind is Kind.SELECTED and not isinstance(operation.selection, Picks):
        return Kind.ASSEMBLED if isinstance(operation.selection, Padding) else Kind.GENERAL
    return kind
