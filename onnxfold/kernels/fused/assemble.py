"""Values that are put together from others: any box of them is made of boxes of the operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Box, Source


class Concatenated:
    """A :class:`~onnxfold.pool.source.Source`: several one after the other along an axis."""

    def __init__(self, parts: Sequence[Source], axis: int) -> None:
        self._axis = axis
        self._parts: list[tuple[int, Source]] = []
        end = 0
        for part in parts:
            self._parts.append((end, part))
            end += part.shape[axis]
        shape = parts[0].shape
        self.shape: tuple[int, ...] = (*shape[:axis], end, *shape[axis + 1 :])
        self.dtype: ir.DataType = parts[0].dtype
        self.fast_axis = max(parts, key=lambda part: part.shape[axis]).fast_axis
        self.working_bytes = max(part.working_bytes for part in parts)
        self.least_tile = max(part.least_tile for part in parts)
        self.read_bytes = sum(part.read_bytes for part in parts)

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``."""
        before = (slice(None),) * self._axis
        for part, inner, place in self._within(box):
            index = (*before, place)
            part.fill(inner, target[index])

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that computing the box (or all) has touched."""
        if box is None:
            for _, part in self._parts:
                part.release()
            return
        for part, inner, _ in self._within(box):
            part.release(inner)

    def _within(self, box: Box) -> Iterator[tuple[Source, Box, slice]]:
        """The parts in a box, the box of each, and its place along the axis."""
        axis = self._axis
        wanted = box[axis]
        for begin, part in self._parts:
            start = max(wanted.start, begin)
            stop = min(wanted.stop, begin + part.shape[axis])
            if start < stop:
                inner = (*box[:axis], slice(start - begin, stop - begin), *box[axis + 1 :])
                yield part, inner, slice(start - wanted.start, stop - wanted.start)


class Padded:
    """A :class:`~onnxfold.pool.source.Source`: another one with one element all around it.

    Args:
        source: What is inside.
        widths: How much is added before and after every axis; less than 0 takes away.
        fill: The element that is added, 0-d.
    """

    def __init__(self, source: Source, widths: Sequence[tuple[int, int]], fill: Array) -> None:
        self._source = source
        self._before = [before for before, _ in widths]
        self._fill = fill
        self.shape = tuple(
            before + extent + after
            for extent, (before, after) in zip(source.shape, widths, strict=True)
        )
        self.dtype = source.dtype
        self.fast_axis = source.fast_axis
        self.working_bytes = source.working_bytes
        self.least_tile = source.least_tile
        self.read_bytes = source.read_bytes

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``."""
        inner, place = self._within(box)
        if inner is None:
            target[...] = self._fill
            return
        whole = target
        for axis, inside in enumerate(place):
            along = whole.swapaxes(0, axis)
            along[: inside.start] = self._fill
            along[inside.stop :] = self._fill
            whole = along[inside].swapaxes(0, axis)
        self._source.fill(inner, whole)

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that computing the box (or all) has touched."""
        if box is None:
            self._source.release()
            return
        inner, _ = self._within(box)
        if inner is not None:
            self._source.release(inner)

    def _within(self, box: Box) -> tuple[Box | None, Box]:
        """The box of the source, None if there is nothing of it, and its place in the box."""
        inner = []
        place = []
        for wanted, before, extent in zip(box, self._before, self._source.shape, strict=True):
            start = max(wanted.start - before, 0)
            stop = min(wanted.stop - before, extent)
            if start >= stop:
                return None, ()
            inner.append(slice(start, stop))
            place.append(slice(start + before - wanted.start, stop + before - wanted.start))
        return tuple(inner), tuple(place)


class Permuted:
    """A :class:`~onnxfold.pool.source.Source` whose axis ``k`` is axis ``order[k]`` of another."""

    def __init__(self, source: Source, order: Sequence[int]) -> None:
        self._source = source
        self._inverse = [order.index(k) for k in range(len(order))]
        self.shape = tuple(source.shape[k] for k in order)
        self.dtype = source.dtype
        self.fast_axis = self._inverse[source.fast_axis]
        self.working_bytes = source.working_bytes
        self.least_tile = source.least_tile
        self.read_bytes = source.read_bytes

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``."""
        self._source.fill(self._inner(box), target.transpose(self._inverse))

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that computing the box (or all) has touched."""
        self._source.release(None if box is None else self._inner(box))

    def _inner(self, box: Box) -> Box:
        return tuple(box[k] for k in self._inverse)
