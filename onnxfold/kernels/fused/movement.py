"""Movements: what happens to a value on its way up to a result that is computed from it.

A moved array is a view. A moved selection is the operand and the lists of places, moved; where no
strides express that, its axes are taken together in groups.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from onnxfold.kernels.fused import by_onnxruntime
from onnxfold.kernels.fused.grouped import Grouped
from onnxfold.kernels.fused.indexed import Indexed
from onnxfold.kernels.fused.joint import Move
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import AllocationBound, Kind, Postpone
from onnxfold.kernels.selection import Padding, Picks
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array

MOVEMENTS = (Kind.VIEW, Kind.SELECTED)
FUSABLE = (*MOVEMENTS, Kind.ELEMENTWISE, Kind.ASSEMBLED)


class Blocked(Exception):
    """No strides express a movement of what is below: ``buffer`` has to be computed on its own."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(repr(buffer))
        self.buffer = buffer


class Movement:
    """What happens to a value on its way up to the result: a list of views, the first one first.

    Args:
        operation: A view op or one that picks; None for broadcasting to ``shape``.
        index: Which of its results.
        shape: The shape afterwards.
        then: What happens next; None at the result.
    """

    __slots__ = ("index", "operation", "shape", "then")

    def __init__(
        self,
        operation: Operation | None,
        index: int,
        shape: tuple[int, ...],
        then: Movement | None,
    ) -> None:
        self.operation = operation
        self.index = index
        self.shape = shape
        self.then = then


class Movements:
    """Makes movements so that equal ones are the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Movement] = {}

    def of_operand(
        self, operation: Operation, index: int, operand: Buffer, then: Movement | None
    ) -> Movement | None:
        """The movement of an operand, from that of the operation's result ``index``."""
        result = operation.results[index]
        assert result is not None
        if kind_of(operation) in MOVEMENTS:
            return self._make(operation, index, result.shape, then)
        if operand.shape != result.shape:
            return self._make(None, 0, result.shape, then)
        return then

    def of_part(self, operation: Operation, place: int) -> Movement:
        """Stands for the use of an operand as part of an assembled result."""
        return self._make(operation, place, (), None)

    def _make(
        self,
        operation: Operation | None,
        index: int,
        shape: tuple[int, ...],
        then: Movement | None,
    ) -> Movement:
        key = (operation, index, shape, id(then))
        movement = self._known.get(key)
        if movement is None:
            movement = self._known[key] = Movement(operation, index, shape, then)
        return movement


def kind_of(operation: Operation) -> Kind:
    """The kind of the operation's kernel for its operands; without one, that of onnxruntime's.

    Of what selects, it is that of what is done: to pad is to assemble.
    """
    if operation.kernel is None:
        if operation.computes_pieces is None:
            operation.computes_pieces = by_onnxruntime.computes_pieces(operation)
        return Kind.ELEMENTWISE if operation.computes_pieces else Kind.GENERAL
    dtypes = [None if b is None else b.dtype.numpy() for b in operation.operands]
    kind = operation.kernel.kind_for(dtypes, operation.attributes)
    if kind is Kind.SELECTED and not isinstance(operation.selection, Picks):
        return Kind.ASSEMBLED if isinstance(operation.selection, Padding) else Kind.GENERAL
    return kind


def keeps_order(operation: Operation, result: Buffer) -> bool:
    """True if the elements of a view op's result have the order of its operand's."""
    operand = operation.operands[0]
    assert operand is not None
    if operand.size != result.size:
        return False
    place = np.empty(1, operand.dtype.numpy())
    strides = []
    step = place.itemsize
    for extent in reversed(operand.shape):
        strides.append(step)
        step *= extent
    # only its strides are looked at
    layout = np.lib.stride_tricks.as_strided(place, operand.shape, strides[::-1], writeable=False)
    moved = view(operation, list(operation.results).index(result), layout)
    start = moved.__array_interface__["data"][0]
    return bool(moved.flags.c_contiguous and start == place.__array_interface__["data"][0])


def view(operation: Operation, index: int, array: Array) -> Array:
    """Apply a view op to an array in the place of its first operand. Raises Postpone, not copy."""
    assert operation.kernel is not None
    others = [None if b is None else b.array() for b in operation.operands[1:]]
    with AllocationBound(0):
        views = operation.kernel(
            [array, *others],
            operation.attributes,
            n_outputs=len(operation.node.outputs),
            opset=operation.opset,
        )
    return views[index]


def moved(buffer: Buffer, movement: Movement | None) -> Array | Indexed | Grouped:
    """A known operand as the result sees it; what is repeated is cut to extent 1."""
    content: Array | Indexed | Grouped = buffer.array()
    while movement is not None:
        try:
            content = _once_moved(content, movement, buffer)
        except Postpone:
            if isinstance(content, Grouped):
                raise Blocked(content.blocked) from None
            assert movement.operation is not None
            raise _blocked(movement.operation, movement.index) from None
        movement = movement.then
    if isinstance(content, Grouped):
        return content if max(content.groups) > 1 else content.content
    if isinstance(content, Indexed):
        array = content.as_view()
        if array is None:
            return content
        content = array
    varying = tuple(
        slice(0, 1) if extent > 1 and stride == 0 else slice(None)
        for extent, stride in zip(content.shape, content.strides, strict=True)
    )
    return content[varying] if varying else content


def _once_moved(
    content: Array | Indexed | Grouped, movement: Movement, buffer: Buffer
) -> Array | Indexed | Grouped:
    operation = movement.operation
    if operation is not None and isinstance(operation.selection, Picks):
        if isinstance(content, Grouped):
            raise Postpone(movement.shape, buffer.dtype.numpy())
        if not isinstance(content, Indexed):
            content = Indexed.of(content, buffer.dtype, buffer)
        lists = [b for b in operation.operands[1:] if b is not None]
        return content.selected(operation.selection.places, lists)
    if operation is None:
        move: Move = functools.partial(np.broadcast_to, shape=movement.shape)
    else:
        move = functools.partial(view, operation, movement.index)
    if isinstance(content, np.ndarray):
        return move(content)
    if isinstance(content, Indexed):
        try:
            return content.moved(move)
        except Postpone:
            if operation is None:
                raise
            content = Grouped.of(content, _blocked(operation, movement.index).buffer)
    return _regrouped(content, movement)


def _regrouped(content: Grouped, movement: Movement) -> Grouped:
    """Move what no strides move. Raises Postpone where that is more than it can do."""
    operation = movement.operation
    postpone = Postpone(movement.shape, content.content.dtype.numpy())
    if operation is None or operation.operands[0] is None:
        raise postpone
    result = operation.results[movement.index]
    if result is not None and keeps_order(operation, result):
        return content.reshaped(result.shape)
    order = permutation(operation.operands[0], Movement(operation, movement.index, (), None))
    if order is None:
        raise postpone
    return content.permuted(order)


def permutation(buffer: Buffer, movement: Movement | None) -> list[int] | None:
    """Which axis of the buffer each axis of the result is; None if it is not only that."""
    place = np.empty(1, buffer.dtype.numpy())
    # no two axes have the same stride; only the strides are looked at
    strides = [place.itemsize * (k + 1) for k in range(len(buffer.shape))]
    layout = np.lib.stride_tricks.as_strided(place, buffer.shape, strides, writeable=False)
    while movement is not None:
        if movement.operation is None or layout.shape == ():
            return None
        if movement.operation.selection is not None:
            return None
        try:
            layout = view(movement.operation, movement.index, layout)
        except Postpone:
            return None
        movement = movement.then
    start = layout.__array_interface__["data"][0]
    extents = dict(zip(strides, buffer.shape, strict=True))
    found = dict(zip(layout.strides, layout.shape, strict=True))
    if start != place.__array_interface__["data"][0] or found != extents:
        return None
    return [strides.index(stride) for stride in layout.strides]


def _blocked(operation: Operation, index: int) -> Blocked:
    operand, result = operation.operands[0], operation.results[index]
    assert operand is not None and result is not None
    return Blocked(result if operand.is_known else operand)
