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
from onnxfold.kernels.fused.movement import (
    FUSABLE,
    MOVEMENTS,
    Blocked,
    Movement,
    Movements,
    keeps_order,
    kind_of,
    moved,
    permutation,
)
from onnxfold.kernels.fused.program import Leaf, Program, Step
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind, Postpone
from onnxfold.kernels.selection import Padding
from onnxfold.pool import Buffer
from onnxfold.pool.source import Source

# So many assembled values may be parts of each other before one of them is stored.
_DEEPEST = 16


class Missing(Exception):
    """Something that the program reads could not be computed."""


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
        if kind_of(operation) is not Kind.VIEW or not keeps_order(operation, root):
            break
        root = operand
    return root


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
        content = moved(buffer, movement)
        if isinstance(content, Grouped):
            self.groups[len(self._leaves)] = content
            content = content.content
        self._add_leaf((buffer, movement), Leaf(content, buffer))

    def _assembled(self, buffer: Buffer, operation: Operation, movement: Movement | None) -> Source:
        """The source of an assembled value, its axes where the result wants them."""
        order = permutation(buffer, movement)
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
