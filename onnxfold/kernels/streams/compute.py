"""Storing what a plan says, and reducing: in boxes, so that only a few of them take memory."""

from __future__ import annotations

import contextlib

import numpy as np

from onnxfold.kernels.engines import Engines
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind, NotExact, Postpone
from onnxfold.kernels.schedule import awaits
from onnxfold.kernels.streams.build import Unavailable, stream
from onnxfold.kernels.streams.plan import StreamPlan, kind_of
from onnxfold.kernels.streams.reductions import reduced
from onnxfold.kernels.streams.sources import Stream
from onnxfold.kernels.streams.views import view
from onnxfold.pool import Buffer, Pool


class Streams:
    """One computation of postponed operations.

    Args:
        pool: Where operands and results live.
        engines: Compute what is not done in boxes.
        plan: How the operations are computed.
        failures: Gets the operations that cannot be computed, with the reason.
        bounded: Whether a result that takes long to compute is a failure.
    """

    def __init__(
        self,
        pool: Pool,
        engines: Engines,
        plan: StreamPlan,
        failures: dict[Operation, str],
        *,
        bounded: bool,
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._plan = plan
        self._bounded = bounded
        self.failures = failures

    def run(self, operation: Operation) -> None:
        """Compute what is stored of a streamed or reduced operation's results."""
        if operation in self._plan.reduced:
            self._reduce(operation)
            return
        for buffer in operation.results:
            if buffer is not None and buffer in self._plan.stored and awaits(buffer, operation):
                self._store(buffer)

    def stream(self, buffer: Buffer, *, keep_axes: bool = False) -> Stream | None:
        """What computes a streamed result; None if what it needs has failed."""
        with contextlib.suppress(Unavailable):
            return stream(buffer, self._plan.inlined, keep_axes=keep_axes)
        return None

    def _store(self, buffer: Buffer) -> None:
        """Compute a streamed result and keep it: as a view where it is one, else in boxes."""
        operation = buffer.deferred
        assert isinstance(operation, Operation)
        first = operation.operands[0]
        if kind_of(operation) is Kind.VIEW and first is not None and first.is_known:
            with contextlib.suppress(Postpone):  # no strides express it
                array = view(operation, list(operation.results).index(buffer), first.array())
                self._pool.fulfil(buffer, array)
                return
        try:
            source = stream(buffer, self._plan.inlined, compact=True)
        except Unavailable:
            return  # what it needs has failed
        time = self._engines.time
        if self._bounded and source.nbytes > time.nbytes:
            self.failures[operation] = f"it would take too long to compute {source.nbytes:,} bytes"
            return
        with time.spending():
            array = self._pool.store(source)
        if array.size == buffer.size:
            array = array.reshape(buffer.shape)
        else:
            array = np.broadcast_to(array, buffer.shape)
        self._pool.fulfil(buffer, array)

    def _reduce(self, operation: Operation) -> None:
        """A reduction, piece by piece if its bits allow it."""
        if not any(awaits(b, operation) for b in operation.results):
            return
        first = operation.operands[0]
        assert first is not None
        source = self.stream(first, keep_axes=True)
        time = self._engines.time
        if source is not None and source.nbytes <= time.nbytes:
            with contextlib.suppress(NotExact), time.spending():
                result = reduced(operation, source, self._engines.whole, self._pool)
                buffer = operation.results[0]
                assert buffer is not None
                self._pool.fulfil(buffer, result)
                return
        if not first.is_known:
            self._store(first)
        self._engines.compute([operation], self.failures)
