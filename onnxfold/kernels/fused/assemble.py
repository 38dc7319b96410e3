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


class Permuted:
    """A :class:`~onnxfold.pool.source.Source` whose axis ``k`` is axis ``order[k]`` of another."""

    def __init__(self, source: Source, order: Sequence[int]) -> None:
        self._source = source
        self._inverse = [order.index(k) for k in range(len(order))]
        self.shape = tuple(source.shape[k] for k in order)
        self.dtype = source.dtype
        self.fast_axis = self._inverse[source.fast_axis]
        self.working_bytes = source.working_bytes

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``."""
        self._source.fill(self._inner(box), target.transpose(self._inverse))

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that computing the box (or all) has touched."""
        self._source.release(None if box is None else self._inner(box))

    def _inner(self, box: Box) -> Box:
        return tuple(box[k] for k in self._inverse)
