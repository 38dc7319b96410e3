"""From postponed operations to a :class:`Program`: movement goes down to the known operands.

A movement of element-wise work is the same work on moved operands, and a moved array is a view:
``Transpose(Add(a, b))`` is ``Add(a.T, b.T)``. So all steps of a program are element-wise in the
shape of its result, and nothing is copied before it is computed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from onnxfold.kernels.dtypes import broadcast_shape
from onnxfold.kernels.fused import by_onnxruntime
from onnxfold.kernels.fused.assemble import Concatenated, Padded, Permuted
from onnxfold.kernels.fused.grouped import Grouped
from onnxfold.kernels.fused.indexed import Indexed
from onnxfold.kernels.fused.joint import Move
from onnxfold.kernels.fused.program import Leaf, Program, Step
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import AllocationBound, Kind, Postpone
from onnxfold.kernels.selection import Padding, Picks
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Source

MOVEMENTS = (Kind.VIEW, Kind.SELECTED)
FUSABLE = (*MOVEMENTS, Kind.ELEMENTWISE, Kind.ASSEMBLED)
# So many assembled values may be parts of each other before one of them is stored.
_DEEPEST = 16


class Blocked(Exception):
    """No strides express a movement of what is below: ``buffer`` has to be computed on its own."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(repr(buffer))
        self.buffer = buffer


class Missing(Exception):
    """Something that the program reads could not be computed."""


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


def lower(
    root: Buffer,
    inlined: Collection[Buffer],
    *,
    compact: bool = False,
    keep_axes: bool = False,
) -> tuple[Program, tuple[int, ...]]:
    """The program that computes a postponed buffer.

    Args:
        root: The result.
        inlined: Postponed buffers that are computed on the way and not stored; whatever else the
            root needs is known.
        compact: Compute what does not vary along an axis once.
        keep_axes: Let the program have the root's axes.

    Returns:
        The program, which gives the root's elements in row-major order, and their shape: with
        ``compact`` axes may have extent 1 where the root repeats its elements.

    Raises:
        Blocked: a buffer on the way has to be computed first.
        Missing: something that should be known is not.
    """
    base = root if keep_axes else _same_order(root, inlined)
    lowering = _Lowering(base, inlined)
    shape = base.shape
    if compact and lowering.varying != shape and not lowering.groups:
        if base is not root and not base.is_known:
            raise Blocked(base)
        shape = lowering.varying if base is root else shape
    return lowering.program(shape, keep_axes=keep_axes), shape


def _same_order(root: Buffer, inlined: Collection[Buffer]) -> Buffer:
    """Where reshaping leads back to: the order of the elements is that of the operand."""
    while isinstance(root.deferred, Operation):
        operation = root.deferred
        operand = operation.operands[0]
        if operand is None or not (operand.is_known or operand in inlined):
            break
        if kind_of(operation) is not Kind.VIEW or not _keeps_order(operation, root):
            break
        root = operand
    return root


def _keeps_order(operation: Operation, result: Buffer) -> bool:
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


class _Lowering:
    """The leaves and steps of a program.

    Attributes:
        varying: The shape of the result, with extent 1 where it repeats its elements.
    """

    def __init__(self, root: Buffer, inlined: Collection[Buffer], depth: int = 0) -> None:
        self._root = root
        self._depth = depth
        self._inlined = inlined
        self._movements = Movements()
        self._leaves: list[Leaf] = []
        self._steps: list[Step] = []
        # leaves count down from -1, steps up from 0
        self._slots: dict[tuple[Buffer, Movement | None], int] = {}
        self.groups: dict[int, Grouped] = {}
        """Leaves, by number, that have more axes than the result."""
        self._visit(root)
        self.varying = broadcast_shape(
            *(
                self.groups[k].shape if k in self.groups else leaf.content.shape
                for k, leaf in enumerate(self._leaves)
            )
        )

    def _add_leaf(self, key: tuple[Buffer, Movement | None], leaf: Leaf) -> None:
        self._leaves.append(leaf)
        self._slots[key] = -len(self._leaves)

    def _add_known(self, buffer: Buffer, movement: Movement | None) -> None:
        content = _moved(buffer, movement)
        if isinstance(content, Grouped):
            self.groups[len(self._leaves)] = content
            content = content.content
        self._add_leaf((buffer, movement), Leaf(content, buffer))

    def _assembled(self, buffer: Buffer, operation: Operation, movement: Movement | None) -> Source:
        """The source of an assembled value, its axes where the result wants them."""
        order = _permutation(buffer, movement)
        if order is None or self._depth >= _DEEPEST:
            raise Blocked(buffer)
        selection = operation.selection
        parts = []
        for operand in operation.operands[: 1 if selection else None]:
            assert operand is not None
            if not operand.is_known and operand not in self._inlined:
                raise Missing
            if operand.size:
                part = _Lowering(operand, self._inlined, self._depth + 1)
                parts.append(part.program(operand.shape, keep_axes=True))
        source: Source
        if isinstance(selection, Padding):
            source = Padded(parts[0], selection.widths, selection.fill)
        else:
            source = Concatenated(parts, operation.attributes["axis"] % len(buffer.shape))
        return source if order == list(range(len(order))) else Permuted(source, order)

    def program(self, shape: tuple[int, ...], *, keep_axes: bool) -> Program:
        """What computes the elements in that shape: the root's, or ``varying``."""
        leaves = self._leaves
        if self.groups:
            factors = next(iter(self.groups.values())).factors
            leaves = [self._split(k, factors, keep_axes) for k in range(len(leaves))]
            shape = tuple(extent for extents in factors for extent in extents)
        count = len(leaves)
        steps = [
            Step(
                s.call,
                tuple(None if k is None else k + count if k >= 0 else -1 - k for k in s.operands),
                s.itemsize,
            )
            for s in self._steps
        ]
        return Program(shape, self._root.dtype, leaves, steps, keep_axes=keep_axes)

    def _split(self, number: int, factors: Sequence[tuple[int, ...]], keep_axes: bool) -> Leaf:
        """A leaf with its axes split into factors, as those of the groups are."""
        leaf = self._leaves[number]
        content = leaf.content
        grouped = self.groups.get(number)
        if grouped is not None and grouped.factors == factors and not keep_axes:
            return leaf
        if grouped is not None:
            raise Blocked(grouped.blocked)
        if isinstance(content, np.ndarray):
            extents = [
                1 if own == 1 else extent
                for own, extents in zip(content.shape, factors, strict=True)
                for extent in extents
            ]
            return Leaf(content.reshape(extents), leaf.buffer)
        if isinstance(content, Indexed):
            with contextlib.suppress(Postpone):
                split = content.reshaped([extent for extents in factors for extent in extents])
                return Leaf(split, leaf.buffer)
        raise Blocked(next(iter(self.groups.values())).blocked)

    def _visit(self, root: Buffer) -> None:
        stack: list[tuple[Buffer, Movement | None]] = [(root, None)]
        while stack:
            key = stack[-1]
            if key in self._slots:
                stack.pop()
                continue
            buffer, movement = key
            if buffer.is_known:
                self._add_known(buffer, movement)
                stack.pop()
                continue
            operation = buffer.deferred
            if not isinstance(operation, Operation) or not (
                buffer is root or buffer in self._inlined
            ):
                raise Missing
            index = list(operation.results).index(buffer)
            kind = kind_of(operation)
            if kind not in FUSABLE:
                raise Missing
            if kind is Kind.ASSEMBLED:
                self._add_leaf(key, Leaf(self._assembled(buffer, operation, movement)))
                stack.pop()
                continue
            is_moved = kind in MOVEMENTS
            below = [
                None
                if b is None
                else (b, self._movements.of_operand(operation, index, b, movement))
                for b in operation.operands[: 1 if is_moved else None]
            ]
            missing = [k for k in below if k is not None and k not in self._slots]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if is_moved:
                assert below[0] is not None
                self._slots[key] = self._slots[below[0]]
            else:
                operands = tuple(None if k is None else self._slots[k] for k in below)
                step = Step(_call(operation), operands, buffer.dtype.numpy().itemsize)
                self._slots[key] = len(self._steps)
                self._steps.append(step)


def _call(operation: Operation) -> Any:
    kernel = operation.kernel
    if kernel is None:
        return by_onnxruntime.call(operation)
    return functools.partial(
        kernel.function,
        **kernel.arguments(
            operation.attributes, n_outputs=len(operation.node.outputs), opset=operation.opset
        ),
    )


def _moved(buffer: Buffer, movement: Movement | None) -> Array | Indexed | Grouped:
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
    if result is not None and _keeps_order(operation, result):
        return content.reshaped(result.shape)
    order = _permutation(operation.operands[0], Movement(operation, movement.index, (), None))
    if order is None:
        raise postpone
    return content.permuted(order)


def _permutation(buffer: Buffer, movement: Movement | None) -> list[int] | None:
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
