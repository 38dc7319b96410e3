"""Element-wise steps over strided arrays, evaluated on any box of their common shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.fused.indexed import Indexed
from onnxfold.kernels.fused.places import is_dense
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Box, Source
from onnxfold.pool.tiles import copy_in_blocks

# What one step reads and writes at a time, bytes each: a few of them fit the second-level cache.
PIECE_BYTES = 1 << 17
# Where rows and columns change places, a piece has this many elements along the row.
_COLUMNS = 64
# Mapped pages are given back piece by piece if there are more of them than this.
KEPT_BYTES = 1 << 24
# Of a box that is read across its rows, so much is computed before its pages are given back.
STRIP_BYTES = 1 << 22


@dataclass(frozen=True)
class Leaf:
    """An operand in the shape of the program: a view of a known buffer, or another source."""

    content: Array | Source
    buffer: Buffer | None = None


@dataclass(frozen=True)
class Step:
    """``call`` of the slots ``operands`` (None where omitted) gives the next slot.

    Slots are the leaves, then the results of the steps before. ``last_uses`` are those that no
    later step reads.
    """

    call: Callable[..., Any]
    operands: tuple[int | None, ...]
    itemsize: int
    last_uses: tuple[int, ...] = ()


class Program:
    """A :class:`~onnxfold.pool.source.Source`: what it computes is never there as a whole.

    Args:
        shape: Shape of the result.
        dtype: Its dtype.
        leaves: Known operands; axes are those of ``shape``, of its extent or 1.
        steps: Element-wise work in order; the last gives the result. None: the first leaf is it.
        keep_axes: Do not merge axes where the strides would allow it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: ir.DataType,
        leaves: Sequence[Leaf],
        steps: Sequence[Step],
        *,
        keep_axes: bool = False,
    ) -> None:
        self._buffers = list({leaf.buffer: None for leaf in leaves if leaf.buffer is not None})
        self._contents: list[Array | Source] = [leaf.content for leaf in leaves]
        self.shape = tuple(shape)
        arrays = [c for c in self._contents if isinstance(c, np.ndarray)]
        if not keep_axes and len(arrays) == len(leaves):
            self.shape, arrays = _merged(self.shape, arrays)
            self._contents = [*arrays]
        self.dtype = dtype
        self._steps = _with_last_uses(len(leaves), steps)
        sizes = [dtype.numpy().itemsize, *(s.itemsize for s in steps)]
        sizes += [
            c.dtype.itemsize if isinstance(c, np.ndarray) else c.dtype.numpy().itemsize
            for c in self._contents
        ]
        self._widest = max(sizes)
        self._owners = [leaf.buffer for leaf in leaves]
        self.fast_axis = self._fast_axis()
        self.least_tile = self._least_tile()

    @property
    def nbytes(self) -> int:
        """Bytes of the result as an array."""
        return math.prod(self.shape) * self.dtype.numpy().itemsize

    @property
    def working_bytes(self) -> int:
        """What one thread needs besides the place of the result, bytes."""
        sources = [c.working_bytes for c in self._contents if not isinstance(c, np.ndarray)]
        pieces = bool(self._steps) or any(isinstance(c, Indexed) for c in self._contents)
        return 3 * PIECE_BYTES * pieces + max(sources, default=0)

    @property
    def read_bytes(self) -> int:
        """Bytes of what it is computed from."""
        return sum(c.nbytes if isinstance(c, np.ndarray) else c.read_bytes for c in self._contents)

    @property
    def kept_bytes(self) -> int:
        """Bytes of mapped pages that may stay in memory between tiles."""
        return max((c.kept_bytes for c in self._contents if isinstance(c, Indexed)), default=0)

    @property
    def has_strips(self) -> bool:
        """True if pages are given back while a large box is computed that lies across them."""
        across = self.fast_axis < len(self.shape) - 1
        return across and (bool(self._steps) or isinstance(self._contents[0], Indexed))

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``, an array of its shape and any strides."""
        if not self._steps:
            content = self._contents[0]
            if isinstance(content, np.ndarray):
                _copy(target, _cut(content, box))
                return
            if isinstance(content, Indexed):
                if content.take(box, target):
                    return
            elif content.shape == self.shape:
                content.fill(box, target)
                return
        read = [_read(c, box) if _is_apart(c) else None for c in self._contents]
        sizes = self._piece_of(box)
        strips = self._strips(box, sizes)
        with np.errstate(all="ignore"):  # threads have settings of their own
            for strip in strips:
                for piece in cuts(strip, sizes):
                    place = tuple(
                        slice(p.start - b.start, p.stop - b.start)
                        for p, b in zip(piece, box, strict=True)
                    )
                    known = [None if r is None else _cut(r, place) for r in read]
                    result = self._evaluate(piece, known)
                    _copy(target[place] if place else target, result)
                if len(strips) > 1:
                    self.release(strip)

    def whole(self) -> Box:
        """The box that is everything."""
        return tuple(slice(0, extent) for extent in self.shape)

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that computing the box (or all) has touched."""
        if box is None:
            for whole in self._buffers:
                whole.release_pages()
            for content in self._contents:
                if not isinstance(content, np.ndarray):
                    content.release()
            return
        for content, buffer in zip(self._contents, self._owners, strict=True):
            if not isinstance(content, np.ndarray):
                content.release(box)
            elif buffer is not None and content.nbytes > KEPT_BYTES:
                part = _cut(content, box)
                if is_dense(part):
                    buffer.release_pages(part)

    def _evaluate(self, piece: Box, known: Sequence[Array | None]) -> Array:
        slots: list[Array | None] = [
            _read(content, piece) if array is None else array
            for content, array in zip(self._contents, known, strict=True)
        ]
        for step in self._steps:
            slots.append(step.call(*(None if k is None else slots[k] for k in step.operands)))
            for k in step.last_uses:
                slots[k] = None
        result = slots[-1]
        assert result is not None
        return result

    def _piece_of(self, box: Box) -> list[int]:
        """Extents of pieces of a box such that the arrays of one step fit the cache."""
        limit = max(1, PIECE_BYTES // self._widest)
        extents = [s.stop - s.start for s in box]
        sizes = [1] * len(extents)
        last = len(extents) - 1
        if self.fast_axis != last and math.prod(extents) > limit:
            # both the runs that are read and those that are written should be long
            sizes[last] = min(extents[last], _COLUMNS)
            sizes[self.fast_axis] = min(extents[self.fast_axis], max(1, limit // sizes[last]))
        for axis in range(last, -1, -1):
            room = limit // math.prod(sizes)
            if room <= 1:
                break
            sizes[axis] = min(extents[axis], sizes[axis] * room)
        return sizes

    def _strips(self, box: Box, sizes: Sequence[int]) -> list[Box]:
        """What of a large box is computed before its pages are given back.

        Where rows and columns change places, a box reads more of each page than it needs pages.
        """
        extents = [s.stop - s.start for s in box]
        if self.fast_axis == len(box) - 1 or math.prod(extents) * self._widest <= STRIP_BYTES:
            return [box]
        of_strip = [
            extent if axis == self.fast_axis else size
            for axis, (extent, size) in enumerate(zip(extents, sizes, strict=True))
        ]
        return list(cuts(box, of_strip))

    def _least_tile(self) -> int:
        wanted = [c for c in self._contents if not isinstance(c, np.ndarray) and c.least_tile]
        itemsize = self.dtype.numpy().itemsize
        return max((c.least_tile * itemsize // c.dtype.numpy().itemsize for c in wanted), default=0)

    def _fast_axis(self) -> int:
        """The axis along which the largest leaf lies in memory."""
        last = len(self.shape) - 1
        largest = max(self._contents, key=lambda c: math.prod(c.shape), default=None)
        if largest is None:
            return last
        if not isinstance(largest, np.ndarray):
            return largest.fast_axis
        walked = [
            (abs(stride), -axis)
            for axis, (extent, stride) in enumerate(
                zip(largest.shape, largest.strides, strict=True)
            )
            if extent > 1
        ]
        return -min(walked)[1] if walked else last


class Rows:
    """A :class:`~onnxfold.pool.source.Source` of some indices of a program's first axis."""

    def __init__(self, program: Program, start: int, stop: int) -> None:
        self._program = program
        self._start = start
        self.shape = (stop - start, *program.shape[1:])
        self.dtype = program.dtype
        self.fast_axis = program.fast_axis
        self.working_bytes = program.working_bytes
        self.least_tile = program.least_tile
        self.read_bytes = program.read_bytes

    def fill(self, box: Box, target: Array) -> None:
        """Compute the elements in a box into ``target``."""
        self._program.fill(self._of_program(box), target)

    def release(self, box: Box | None = None) -> None:
        """Give back the mapped pages that computing the box (or all) has touched."""
        self._program.release(None if box is None else self._of_program(box))

    def _of_program(self, box: Box) -> Box:
        first, *rest = box
        return (slice(first.start + self._start, first.stop + self._start), *rest)


def _merged(shape: tuple[int, ...], arrays: Sequence[Array]) -> tuple[tuple[int, ...], list[Array]]:
    """The same elements in the same order with as few axes as the strides allow, at least one."""
    kept = [axis for axis, extent in enumerate(shape) if extent != 1]
    shape = tuple(shape[axis] for axis in kept)
    views = [
        np.lib.stride_tricks.as_strided(
            a, [a.shape[k] for k in kept], [a.strides[k] for k in kept], writeable=False
        )
        for a in arrays
    ]
    axis = len(shape) - 1
    while axis > 0:
        if all(_continues(view, axis) for view in views):
            extent = shape[axis - 1] * shape[axis]
            shape = (*shape[: axis - 1], extent, *shape[axis + 1 :])
            views = [_joined(view, axis) for view in views]
        axis -= 1
    if not shape:
        return (1,), [view.reshape(1) for view in views]
    return shape, views


def _continues(view: Array, axis: int) -> bool:
    """True if the axis and the one before are one run, or the view varies along neither."""
    if view.shape[axis] == 1 or view.shape[axis - 1] == 1:
        return bool(view.shape[axis] == view.shape[axis - 1] == 1)
    return bool(view.strides[axis - 1] == view.strides[axis] * view.shape[axis])


def _joined(view: Array, axis: int) -> Array:
    extent = view.shape[axis - 1] * view.shape[axis]
    return np.lib.stride_tricks.as_strided(
        view,
        (*view.shape[: axis - 1], extent, *view.shape[axis + 1 :]),
        (*view.strides[: axis - 1], *view.strides[axis:]),
        writeable=False,
    )


def cuts(box: Box, sizes: Sequence[int]) -> Iterator[Box]:
    """A box in boxes of some extents, which are smaller at its end."""
    counts = [-(-(b.stop - b.start) // size) for b, size in zip(box, sizes, strict=True)]
    for index in np.ndindex(*counts):
        yield tuple(
            slice(b.start + k * size, min(b.start + (k + 1) * size, b.stop))
            for k, size, b in zip(index, sizes, box, strict=True)
        )


def _cut(array: Array, box: Box) -> Array:
    return array[tuple(s if n > 1 else slice(0, 1) for s, n in zip(box, array.shape, strict=True))]


def _read(content: Array | Source, box: Box) -> Array:
    if isinstance(content, np.ndarray):
        return _cut(content, box)
    if isinstance(content, Indexed):
        return content.read(box)
    box = tuple(s if n > 1 else slice(0, 1) for s, n in zip(box, content.shape, strict=True))
    array = np.empty([s.stop - s.start for s in box], content.dtype.numpy())
    content.fill(box, array)
    return array


def _is_apart(content: Array | Source) -> bool:
    """True for what is better read for many pieces at once."""
    return isinstance(content, Indexed) and content.least_tile > 0


def _copy(target: Array, source: Array) -> None:
    copy_in_blocks(target, np.broadcast_to(source, target.shape))


def _with_last_uses(leaves: int, steps: Sequence[Step]) -> list[Step]:
    seen: set[int] = set()
    result: list[Step] = []
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        last = {k for k in step.operands if k is not None and k not in seen}
        seen |= last
        result.append(Step(step.call, step.operands, step.itemsize, tuple(last)))
    return result[::-1]
