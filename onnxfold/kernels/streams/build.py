"""From postponed operations to the sources that compute their results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind
from onnxfold.kernels.selection import Padding, Picks
from onnxfold.kernels.streams import by_onnxruntime
from onnxfold.kernels.streams.moved import (
    Choice,
    Concatenated,
    Reshaped,
    Selected,
    Transposed,
    refined,
)
from onnxfold.kernels.streams.plan import kind_of, reads_all_over
from onnxfold.kernels.streams.sources import ElementWise, Leaf, Pages, Source, Step, Stream
from onnxfold.kernels.streams.views import keeps_order, layout_of, units_of
from onnxfold.pool import Buffer

# Length of the boxes in which something is read at places all over it: each goes through all of it.
_LEAST_TILE = 1 << 24


class Unavailable(Exception):
    """Something that a source reads is neither known nor computed on the way."""


def stream(
    root: Buffer, inlined: Collection[Buffer], *, compact: bool = False, keep_axes: bool = False
) -> Stream:
    """What computes the elements of a postponed buffer, in row-major order.

    Args:
        root: The result.
        inlined: Postponed buffers that are computed on the way and not stored.
        compact: Give extent 1 to the axes along which the root repeats its elements.
        keep_axes: Give it the axes of the root.

    Raises:
        Unavailable: something that the root needs is not known.
    """
    pages = Pages()
    base = root if keep_axes else _same_order(root, inlined)
    source = _Builder(base, inlined, pages).source(base)
    if compact and base is not root and source.shape != base.shape:
        base, source = root, _Builder(root, inlined, pages).source(root)
    is_all_over = isinstance(base.deferred, Operation) and reads_all_over(base.deferred)
    least_tile = _LEAST_TILE if is_all_over else 0
    return Stream(source, source.shape if compact else base.shape, pages, least_tile=least_tile)


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


class _Builder:
    """Makes the sources of one stream."""

    def __init__(self, root: Buffer, inlined: Collection[Buffer], pages: Pages) -> None:
        self._root = root
        self._inlined = inlined
        self._pages = pages

    def source(self, buffer: Buffer) -> Source:
        """What computes a buffer, with its axes."""
        if buffer.is_known:
            return Leaf(buffer.array(), buffer.dtype, self._pages, buffer)
        operation = buffer.deferred
        if not isinstance(operation, Operation) or not self._is_computed(buffer):
            raise Unavailable
        kind = kind_of(operation)
        if kind is Kind.ELEMENTWISE:
            return self._element_wise(buffer)
        first = operation.operands[0]
        assert first is not None
        if kind is Kind.VIEW:
            return self._view(operation, buffer, first)
        if isinstance(operation.selection, Picks):
            return self._picked(operation, operation.selection, buffer, first)
        if isinstance(operation.selection, Padding):
            return self._padded(operation.selection, self.source(first), first.shape)
        if kind is not Kind.ASSEMBLED:
            raise Unavailable
        parts = [(b, self.source(b)) for b in operation.operands if b is not None and b.size]
        axis = operation.attributes["axis"] % len(buffer.shape)
        return Concatenated([(s, b.shape[axis]) for b, s in parts], axis, buffer.shape)

    def _is_computed(self, buffer: Buffer) -> bool:
        return buffer is self._root or buffer in self._inlined

    def _element_wise(self, root: Buffer) -> Source:
        """Element-wise operations on values of one shape, together."""
        operands: list[Source] = []
        steps: list[tuple[Buffer, Operation]] = []
        slots: dict[Buffer, int] = {}
        stack = [root]
        while stack:
            buffer = stack[-1]
            operation = buffer.deferred
            if buffer in slots:
                stack.pop()
            elif not (
                isinstance(operation, Operation)
                and self._is_computed(buffer)
                and buffer.shape == root.shape
                and kind_of(operation) is Kind.ELEMENTWISE
            ):
                slots[buffer] = len(operands)
                operands.append(self.source(buffer))
            else:
                missing = [b for b in operation.operands if b is not None and b not in slots]
                stack.extend(missing)
                if not missing:
                    slots[buffer] = -1
                    steps.append((buffer, operation))
        slots |= {buffer: len(operands) + k for k, (buffer, _) in enumerate(steps)}
        work = [
            Step(
                _call(operation),
                tuple(None if b is None else slots[b] for b in operation.operands),
                buffer.dtype.numpy().itemsize,
            )
            for buffer, operation in steps
        ]
        return ElementWise(operands, work, root.dtype)

    def _view(self, operation: Operation, result: Buffer, operand: Buffer) -> Source:
        source = self.source(operand)
        if keeps_order(operation, result):
            return _reshaped(source, operand.shape, result.shape)
        # what strides and offset the view has tells what it does to the axes
        units = units_of(operand.shape)
        layout, offset = layout_of(operation, result)
        starts = []
        for unit in units:
            start, offset = divmod(offset, unit)
            starts.append(start)
        choices = [range(start, start + 1) for start in starts]
        order: list[int] = []
        extents: list[int] = []
        for extent, stride in zip(layout.shape, layout.strides, strict=True):
            if extent == 1 or stride == 0:
                extents.append(1)
                continue
            axis = next(k for k, u in enumerate(units) if u <= abs(stride) and operand.shape[k] > 1)
            step = stride // units[axis]
            choices[axis] = range(starts[axis], starts[axis] + extent * step, step)
            order.append(axis)
            extents.append(extent)
        if any(len(c) != n or c.step != 1 for c, n in zip(choices, operand.shape, strict=True)):
            source = Selected(source, choices, self._pages)
        order += [axis for axis in range(len(choices)) if axis not in order]
        if order != sorted(order):
            source = Transposed(source, order)
        return _reshaped(source, [len(choices[axis]) for axis in order], extents)

    def _picked(
        self, operation: Operation, picks: Picks, result: Buffer, operand: Buffer
    ) -> Source:
        choices: list[Choice] = [None if p is None else p.reshape(-1) for p in picks.places]
        lists = [b for b in operation.operands[1:] if b is not None]
        source = Selected(self.source(operand), choices, self._pages, lists)
        flat = [n if c is None else len(c) for c, n in zip(choices, operand.shape, strict=True)]
        return _reshaped(source, flat, result.shape)

    def _padded(self, padding: Padding, source: Source, shape: Sequence[int]) -> Source:
        rank = len(shape)
        fill = np.broadcast_to(padding.fill, (1,) * rank)
        cut = [
            range(max(0, -before), extent - max(0, -after))
            for extent, (before, after) in zip(shape, padding.widths, strict=True)
        ]
        if any(len(c) < n for c, n in zip(cut, shape, strict=True)):
            source = Selected(source, cut, self._pages)
        extents = [len(c) for c in cut]
        for axis, (before, after) in enumerate(padding.widths):
            widths = max(0, before), extents[axis], max(0, after)
            if widths[0] or widths[2]:
                around = Leaf(fill, source.dtype, self._pages)
                extents[axis] = sum(widths)
                parts = zip((around, source, around), widths, strict=True)
                source = Concatenated([p for p in parts if p[1]], axis, extents)
        return source


def _reshaped(source: Source, old: Sequence[int], new: Sequence[int]) -> Source:
    if tuple(old) == tuple(new):
        return source
    between = refined(old, new)
    if between is not None and between not in (list(old), list(new)):
        source, old = Reshaped(source, old, between), between
    return Reshaped(source, old, new)


def _call(operation: Operation) -> Callable[..., Any]:
    kernel = operation.kernel
    if kernel is None:
        return by_onnxruntime.call(operation)
    return functools.partial(
        kernel.function,
        **kernel.arguments(
            operation.attributes, n_outputs=len(operation.node.outputs), opset=operation.opset
        ),
    )
