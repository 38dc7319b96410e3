"""Computing operations whose operands are known: NumPy kernels, onnxruntime, the reference."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels.engines import onnxruntime as by_onnxruntime
from onnxfold.kernels.engines import reference
from onnxfold.kernels.engines.onnxruntime import EvaluationError, ThreadDependent
from onnxfold.kernels.extents import EAGER_BYTES, collapse, effective_bytes
from onnxfold.kernels.operation import Operation, Output
from onnxfold.kernels.registry import Kind, NotExact, Unfoldable
from onnxfold.kernels.schedule import awaits, used_outside
from onnxfold.pool import Buffer, Pool
from onnxfold.pool.buffer import Array


class Engines:
    """Computes operations as a whole. What cannot be computed is noted in ``failures``.

    Args:
        pool: Where operands and results live.
        functions: The model's local functions, for calls of them.
        ir_version: The model's IR version.
        working_set: Bytes that one operation's operands and results may take together outside
            the files of the model; None for half of the machine's memory.
        distrusted: Gets the nodes for which onnx's shape inference turns out to be wrong.
        exact: Compute nothing whose result depends on how many threads onnxruntime has.
    """

    def __init__(
        self,
        pool: Pool,
        functions: Sequence[onnx.FunctionProto],
        ir_version: int,
        working_set: int | None,
        distrusted: set[ir.Node],
        exact: bool,
    ) -> None:
        self._pool = pool
        self._exact = exact
        self._ir_version = ir_version
        self.functions = functions
        self.working_set = working_set or _half_of_memory()
        self.distrusted = distrusted

    def numpy(self, operation: Operation, failures: dict[Operation, str]) -> None:
        """Compute one operation by its NumPy kernel, or by onnxruntime where that may differ."""
        assert operation.kernel is not None
        if not any(awaits(b, operation) for b in operation.results):
            return
        reason = self.too_large(operation)
        if reason is not None:
            failures[operation] = reason
            return
        arrays = [None if b is None else b.array() for b in operation.operands]
        kind = operation.kernel.kind_for(
            [None if a is None else a.dtype for a in arrays], operation.attributes
        )
        try:
            computed = self.call(operation, kind, arrays)
        except NotExact:
            operation.kernel = None
            self.onnxruntime([operation], failures)
            return
        except (Unfoldable, MemoryError) as error:
            failures[operation] = str(error) or "out of memory"
            return
        del arrays
        self.fulfil(operation, list(computed), failures)

    def onnxruntime(self, operations: Sequence[Operation], failures: dict[Operation, str]) -> None:
        """Compute operations, operands first, in one session if they can share one."""
        operations = self._computable(operations, failures)
        if not operations:
            return
        wanted = used_outside(operations)
        try:
            arrays = self.run(operations, wanted)
        except EvaluationError as error:
            if len(operations) == 1:
                if isinstance(error, ThreadDependent):
                    failures[operations[0]] = str(error)
                else:
                    self._compute_otherwise(operations[0], str(error), failures)
                return
            # one of them it is: onnxruntime has no kernel for it, or no one answer
            half = len(operations) // 2
            self.onnxruntime(operations[:half], failures)
            self.onnxruntime(operations[half:], failures)
            return
        by_operation: dict[Operation, dict[int, Array]] = {}
        for (operation, index), array in zip(wanted, arrays, strict=True):
            by_operation.setdefault(operation, {})[index] = array
        for operation, computed in by_operation.items():
            results = [computed.get(k) for k in range(len(operation.results))]
            self.fulfil(operation, results, failures)

    def _computable(
        self, operations: Sequence[Operation], failures: dict[Operation, str]
    ) -> list[Operation]:
        """Those that somebody still needs, that fit in memory, and whose operands are there."""
        chosen: dict[Operation, None] = {}
        for operation in operations:
            if not any(awaits(b, operation) for b in operation.results):
                continue
            if not all(b is None or b.is_known or b.deferred in chosen for b in operation.operands):
                continue
            reason = self.too_large(operation)
            if reason is not None:
                failures[operation] = reason
                continue
            chosen[operation] = None
        return list(chosen)

    def _compute_otherwise(
        self, operation: Operation, reason: str, failures: dict[Operation, str]
    ) -> None:
        """One operation that onnxruntime refused: its NumPy kernel, or the reference evaluator."""
        if any(b is not None and b.type_proto is not None for b in operation.results):
            failures[operation] = reason
        elif operation.kernel is not None:
            self.numpy(operation, failures)
        else:
            try:
                computed = reference.run(operation, self.functions)
            except EvaluationError as error:
                failures[operation] = f"{reason}; {error}"
                return
            self.fulfil(operation, computed, failures)

    def fulfil(
        self,
        operation: Operation,
        computed: Sequence[Array | None],
        failures: dict[Operation, str],
    ) -> None:
        """Give an operation's results their elements."""
        for buffer, array in zip(list(operation.results), computed, strict=False):
            if buffer is None or array is None or not awaits(buffer, operation):
                continue
            try:
                self._pool.fulfil(buffer, array)
            except ValueError as error:
                self.distrusted.add(operation.node)
                failures[operation] = f"inference and evaluation disagree: {error}"

    def run(self, operations: Sequence[Operation], wanted: Sequence[Output]) -> list[Array]:
        """Evaluate operations by onnxruntime. Raises EvaluationError."""
        return by_onnxruntime.run(
            operations, wanted, self.functions, self._ir_version, exact=self._exact
        )

    def call(
        self, operation: Operation, kind: Kind, arrays: Sequence[Array | None]
    ) -> Sequence[Array]:
        """Call the kernel; element-wise work on what is repeated is done once."""
        assert operation.kernel is not None
        shape = None
        if kind is Kind.ELEMENTWISE:
            arrays, shape = collapse(arrays)
        computed = operation.kernel(
            arrays,
            operation.attributes,
            n_outputs=len(operation.node.outputs),
            opset=operation.opset,
        )
        if shape is not None:
            computed = [np.broadcast_to(a, shape) for a in computed]
        return computed

    def too_large(self, operation: Operation) -> str | None:
        """Why an operation does not fit in memory, or None."""
        needed = sum(_memory_of(b) for b in operation.operands if b is not None)
        needed += sum(b.nbytes for b in operation.results if b is not None)
        if needed > self.working_set and not _is_free(operation):
            return f"computing it needs {needed:,} bytes of memory"
        return None

    def whole(self, operation: Operation) -> Array:
        """The result of an operation with known operands. Raises NotExact if it is not certain."""
        if operation.kernel is not None:
            with contextlib.suppress(NotExact):
                return self.call(
                    operation,
                    Kind.GENERAL,
                    [None if b is None else b.array() for b in operation.operands],
                )[0]
        try:
            return self.run([operation], [(operation, 0)])[0]
        except EvaluationError as error:
            raise NotExact(str(error)) from error


def _memory_of(buffer: Buffer) -> int:
    """Bytes an evaluator has to hold for an operand; a mapped or zero-stride one costs its view."""
    if buffer.is_known and buffer.array().flags.c_contiguous:
        return 0
    return buffer.nbytes


def _is_free(operation: Operation) -> bool:
    """A view, or element-wise work on zero-stride operands: no memory whatever its size."""
    kernel = operation.kernel
    if kernel is None or any(b is not None and not b.is_known for b in operation.operands):
        return False
    arrays = [None if b is None else b.array() for b in operation.operands]
    kind = kernel.kind_for([None if a is None else a.dtype for a in arrays], operation.attributes)
    return kind is Kind.VIEW or (
        kind is Kind.ELEMENTWISE and effective_bytes(arrays) <= EAGER_BYTES
    )


def _half_of_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 4 << 30
