"""Computing large chains piece by piece: what is kept of them, and what is only passed through."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import numpy as np

from onnxfold.kernels.engines import Engines
from onnxfold.kernels.fused.lower import Missing, lower
from onnxfold.kernels.fused.movement import Blocked, kind_of, view
from onnxfold.kernels.fused.program import Program
from onnxfold.kernels.fused.streams import is_extreme, reduced
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind, NotExact, Postpone
from onnxfold.kernels.schedule import awaits
from onnxfold.pool import Buffer, Pool


class Pieces:
    """One computation of postponed operations.

    Args:
        pool: Where operands and results live.
        engines: Compute what is not done in pieces.
        inlined: Results that are computed on the way to others and not stored.
        failures: Gets the operations that cannot be computed, with the reason.
        bounded: Whether a result that takes long to compute is a failure.
    """

    def __init__(
        self,
        pool: Pool,
        engines: Engines,
        inlined: Collection[Buffer],
        failures: dict[Operation, str],
        *,
        bounded: bool,
    ) -> None:
        self._pool = pool
        self._engines = engines
        self._bounded = bounded
        self.inlined = inlined
        self.failures = failures

    def store(
        self,
        buffer: Buffer,
    ) -> None:
        """Compute a fusable result and keep it: as a view where it is one, else tile by tile."""
        operation = buffer.deferred
        assert isinstance(operation, Operation)
        first = operation.operands[0]
        if kind_of(operation) is Kind.VIEW and first is not None and first.is_known:
            with contextlib.suppress(Postpone):  # no strides express it
                moved = view(operation, list(operation.results).index(buffer), first.array())
                self._pool.fulfil(buffer, moved)
                return
        lowered = self.lower(buffer, compact=True)
        if lowered is None:
            return
        program, shape = lowered
        time = self._engines.time
        if self._bounded and program.nbytes > time.nbytes:
            self.failures[operation] = f"it would take too long to compute {program.nbytes:,} bytes"
            return
        with time.spending():
            array = self._pool.store(program)
        if array.size == buffer.size:
            array = array.reshape(buffer.shape)
        else:
            array = np.broadcast_to(array.reshape(shape), buffer.shape)
        self._pool.fulfil(buffer, array)

    def lower(
        self,
        buffer: Buffer,
        *,
        compact: bool = False,
        keep_axes: bool = False,
    ) -> tuple[Program, tuple[int, ...]] | None:
        """The program for a buffer; None if it has become known on the way, or cannot be had."""
        while keep_axes or not buffer.is_known:
            try:
                return lower(buffer, self.inlined, compact=compact, keep_axes=keep_axes)
            except Missing:
                return None  # what it needs has failed
            except Blocked as blocked:
                self.store(blocked.buffer)
                if not blocked.buffer.is_known:
                    return None
        return None

    def reduce(self, operation: Operation) -> None:
        """A reduction, piece by piece if its bits allow it."""
        if not any(awaits(b, operation) for b in operation.results):
            return
        first = operation.operands[0]
        assert first is not None
        compact = is_extreme(operation)
        lowered = self.lower(first, compact=compact, keep_axes=True)
        time = self._engines.time
        if lowered is not None and lowered[0].nbytes <= time.nbytes:
            with contextlib.suppress(NotExact), time.spending():
                result = reduced(operation, lowered[0], self._engines.whole, self._pool)
                buffer = operation.results[0]
                assert buffer is not None
                self._pool.fulfil(buffer, result)
                return
        if not first.is_known:
            self.store(first)
        self._engines.compute([operation], self.failures)
