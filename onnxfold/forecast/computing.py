"""Computing what was postponed, played through: what would be held, read and evaluated.

It takes the decisions of the evaluator (which results are never stored, which are reduced piece
by piece, what one onnxruntime session does) and follows the bytes instead of the elements.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from onnxfold.kernels.operation import Operation
from onnxfold.kernels.schedule import phases, postponed
from onnxfold.kernels.streams.build import Unavailable
from onnxfold.kernels.streams.build import stream as build_stream
from onnxfold.kernels.streams.plan import StreamPlan, is_streamable, make_plan
from onnxfold.kernels.streams.sources import Stream
from onnxfold.pool import Buffer, Memory
from onnxfold.pool.parallel import THREADS
from onnxfold.pool.source import WORKING_BYTES

# A reduction that runs piece by piece holds a group of rows, or pieces ahead of the one it adds.
_STREAM_BYTES = 1 << 24
# For each thread, with the tile.
_WORKING_BYTES = THREADS * (WORKING_BYTES + (1 << 20))


class Streamed(NamedTuple):
    """A result that is computed tile by tile as it is written."""

    read: int
    """Bytes of weights that the tiles read."""
    source: Stream | None
    """What computes them; None if that shows only when what it reads has been computed."""


class Computing:
    """Bytes of computations played through.

    Args:
        memory_limit: Bytes of results that are held before they go to the scratch file.
    """

    def __init__(self, memory_limit: int) -> None:
        self._limit = memory_limit
        self._held: dict[Buffer, int] = {}
        self._touched: set[Buffer] = set()
        self.live = 0
        """Bytes of results that are held now."""
        self.pages = 0
        """Bytes of mapped weights that were read as a whole: they stay in memory."""
        self.peak = 0
        """Most bytes in memory at once."""
        self.spilled = 0
        self.read = 0
        """Bytes of weights read."""
        self.by_onnxruntime = False

    def compute(self, buffers: Sequence[Buffer]) -> None:
        """Play through the computation of deferred buffers, each as a whole."""
        self._run(postponed(buffers), buffers, None)

    def stream(self, buffer: Buffer) -> Streamed | None:
        """Play through what a deferred buffer needs to be computed in tiles.

        Returns:
            What the tiles read; None if there are no tiles: then the buffer was computed as a
            whole.
        """
        if buffer in self._held or buffer.is_known:
            return None
        operations = postponed([buffer])
        if not operations or not is_streamable(operations[-1]):
            self._run(operations, [buffer], None)
            return None
        before = self.read
        plan = self._run(operations[:-1], [], buffer)
        self._read(operations[-1])
        source = None
        with contextlib.suppress(Unavailable):  # of what is not known yet
            source = build_stream(buffer, plan.inlined)
        return Streamed(self.read - before, source)

    def _run(
        self, operations: Sequence[Operation], wanted: Sequence[Buffer], streamed: Buffer | None
    ) -> StreamPlan:
        operations = [
            o for o in operations if any(b is not None and b not in self._held for b in o.results)
        ]
        plan = make_plan(operations, wanted, streamed, lambda b: b.references)
        everything = list(operations)
        if streamed is not None:
            assert isinstance(streamed.deferred, Operation)
            everything.append(streamed.deferred)
        readers = Counter(b for o in everything for b in o.operands if b is not None)
        others = {b: b.references - count for b, count in readers.items()}
        for phase, engine_is_numpy in phases(operations, plan.streamed | plan.reduced):
            if not engine_is_numpy:
                self._session(phase, readers)
            else:
                for operation in phase:
                    self._operation(operation, plan)
            for operation in phase:
                self._drop_operands(operation, readers, others)
        return plan

    def _operation(self, operation: Operation, plan: StreamPlan) -> None:
        results = [b for b in operation.results if b is not None]
        if operation in plan.reduced:
            self.by_onnxruntime = True  # it is asked in which order it adds
            self._read(operation)
            self._note(_STREAM_BYTES + _WORKING_BYTES)
            self._hold(results)
        elif operation in plan.streamed:
            self._read(operation)
            kept = [b for b in results if b in plan.stored]
            if kept:
                self._note(_WORKING_BYTES)
            self._hold(kept)
        else:
            self._read(operation, stays=True)
            self._hold(results)

    def _session(self, phase: Sequence[Operation], readers: Counter[Buffer]) -> None:
        """One session of onnxruntime: what its largest op needs, and what is fetched of it."""
        self.by_onnxruntime = True
        inside = {b for o in phase for b in o.results if b is not None}
        inner = Counter(b for o in phase for b in o.operands if b in inside)
        largest = 0
        for operation in phase:
            self._read(operation, stays=True)
            copied = [b for b in operation.operands if b is not None and not _is_in_order(b)]
            largest = max(largest, _nbytes([*copied, *operation.results]))
        self._note(largest)
        self._hold([b for b in inside if b.references > inner[b] or readers[b] > inner[b]])

    def _read(self, operation: Operation, *, stays: bool = False) -> None:
        for buffer in operation.operands:
            if buffer is None or not buffer.is_known or buffer in self._touched:
                continue
            if buffer.block is not None and buffer.block.kind is Memory.MAPPED:
                self._touched.add(buffer)
                self.read += buffer.nbytes
                if stays:
                    self.pages += buffer.nbytes

    def _hold(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            if buffer in self._held:
                continue
            nbytes = buffer.nbytes
            if 2 * nbytes > self._limit:
                self.spilled += nbytes
                nbytes = 0
            self._held[buffer] = nbytes
            self.live += nbytes
            self._note(0)
        if self.live > self._limit:
            self.spilled += self.live - self._limit
            self.live = self._limit

    def _note(self, more: int) -> None:
        self.peak = max(self.peak, self.live + self.pages + more)

    def _drop_operands(
        self, operation: Operation, readers: Counter[Buffer], others: dict[Buffer, int]
    ) -> None:
        """Free the results that only this computation needed, after their last reader."""
        for buffer in operation.operands:
            if buffer is None:
                continue
            readers[buffer] -= 1
            if not readers[buffer] and others[buffer] <= 0 and buffer in self._held:
                self.live = max(0, self.live - self._held[buffer])
                self._held[buffer] = 0


def _nbytes(buffers: Sequence[Buffer | None]) -> int:
    return sum(b.nbytes for b in buffers if b is not None)


def _is_in_order(buffer: Buffer) -> bool:
    return not buffer.is_known or bool(buffer.array().flags.c_contiguous)
