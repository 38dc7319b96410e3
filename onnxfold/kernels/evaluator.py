"""Who computes what, and when: NumPy kernels, onnxruntime, onnx's reference evaluator.

Small operations with known operands are computed at once. Everything else is postponed: its
result is a buffer with shape and dtype only, and what is computed in the end is what somebody
asks for. What NumPy does not compute exactly is gathered, with what lies in between, into one
onnxruntime session for all that is asked for together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels import inference, onnxruntime, reference
from onnxfold.kernels.extents import collapse, effective_bytes, numpy_dtype, stand_in
from onnxfold.kernels.fused.choice import choose, is_fusable, is_large
from onnxfold.kernels.fused.lower import Blocked, Missing, kind_of, lower, view
from onnxfold.kernels.fused.program import Program
from onnxfold.kernels.fused.streams import is_extreme, is_streamed, reduced
from onnxfold.kernels.onnxruntime import EvaluationError
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import AllocationBound, Kind, NotExact, Postpone, Unfoldable
from onnxfold.kernels.schedule import (
    awaits,
    cannot_fail,
    is_ready,
    phases,
    postponed,
    used_outside,
)
from onnxfold.pool import Buffer, Pool
from onnxfold.pool.buffer import Array
from onnxfold.pool.source import Source

# Operands and results up to this many bytes each are computed at once, larger ones postponed.
EAGER_BYTES = 1 << 16


_WHOLE = (Kind.GENERAL, Kind.ASSEMBLED)


class ComputationFailed(Exception):
    """Postponed operations turned out not to be computable: their nodes have to stay."""

    def __init__(self, failures: Mapping[Operation, str]) -> None:
        super().__init__("; ".join(f"{o.label}: {reason}" for o, reason in failures.items()))
        self.failures = failures

    def reasons(self) -> dict[ir.Node, str]:
        """Why each node cannot be computed."""
        return {operation.node: reason for operation, reason in self.failures.items()}


class Evaluator:
    """Computes operations on the buffers of one pool.

    Args:
        pool: Where operands and results live.
        functions: The model's local functions, for calls of them.
        ir_version: The model's IR version.
        working_set: Bytes that one operation's operands and results may take together outside
            the files of the model; None for half of the machine's memory.
        distrusted: Nodes for which onnx's shape inference is wrong: they are computed at once.
            Those found are added.
    """

    def __init__(
        self,
        pool: Pool,
        functions: Sequence[onnx.FunctionProto] = (),
        ir_version: int = 8,
        working_set: int | None = None,
        distrusted: set[ir.Node] | None = None,
    ) -> None:
        self._pool = pool
        self.distrusted = distrusted if distrusted is not None else set()
        self._functions = functions
        self._ir_version = ir_version
        self._working_set = working_set or _half_of_memory()
        pool.set_evaluator(self.compute, self.source)

    # ------------------------------------------------------------ one operation

    def apply(self, operation: Operation) -> list[Buffer | None]:
        """The results of an operation: known buffers, or deferred ones with their shape and dtype.

        Raises:
            Unfoldable: nobody can compute it, with the reason.
            ComputationFailed: it needed the value of a postponed operation, which failed.
        """
        if operation.kernel is not None and not operation.captures:
            results = self._apply_kernel(operation)
            if results is not None:
                return results
        types = inference.infer(operation)
        missing = [
            k
            for k, output in enumerate(operation.node.outputs)
            if output.name and not _is_complete(types[k])
        ]
        if missing or operation.node in self.distrusted:
            return self._apply_now(operation)
        results = []
        for output, result_type in zip(operation.node.outputs, types, strict=True):
            if not output.name or result_type is None:
                results.append(None)
                continue
            shape = result_type.shape if result_type.shape is not None else ()
            buffer = self._pool.defer(shape, result_type.dtype, operation)
            if result_type.dtype == ir.DataType.UNDEFINED:
                buffer.type_proto = result_type.proto
            results.append(buffer)
        operation.results = results
        return results

    def _apply_kernel(self, operation: Operation) -> list[Buffer | None] | None:
        """Compute at once or postpone by the NumPy kernel; None if it is not for NumPy to say."""
        kernel = operation.kernel
        assert kernel is not None
        operands = operation.operands
        dtypes = [None if b is None else numpy_dtype(b) for b in operands]
        kind = kernel.kind_for(dtypes, operation.attributes)
        if kind is Kind.VIEW:
            self.compute([b for b in operands if b is not None and _may_be_sizes(b)])
        known = kind is Kind.SHAPE or all(b is None or b.is_known for b in operands)
        if kind in _WHOLE and not (known and _bytes_of(operands) <= EAGER_BYTES):
            return None
        arrays = [None if b is None else b.array() if b.is_known else stand_in(b) for b in operands]
        if kind is Kind.ELEMENTWISE and not (known and effective_bytes(arrays) <= EAGER_BYTES):
            # the shape and dtype of the result, from one element standing for all
            known = False
            arrays = [None if b is None else stand_in(b) for b in operands]
        try:
            with AllocationBound(EAGER_BYTES):
                computed = self._call(operation, kind, arrays)
        except NotExact:
            operation.kernel = None
            return None
        except Postpone as larger:
            if len(operation.node.outputs) != 1:
                return None
            computed = None
            types = [(larger.shape, ir.DataType.from_numpy(larger.dtype))]
        if computed is not None:
            if known:
                return [self._adopt(array) for array in computed]
            types = [(a.shape, ir.DataType.from_numpy(a.dtype)) for a in computed]
        results = [self._pool.defer(shape, dtype, operation) for shape, dtype in types]
        operation.results = results
        return list(results)

    def _apply_now(self, operation: Operation) -> list[Buffer | None]:
        """Compute an operation whose result types only its computation tells."""
        wanted = [(operation, k) for k, o in enumerate(operation.node.outputs) if o.name]
        pending = postponed(operation.operands)
        if not any(b is not None and b.type_proto is not None for b in operation.operands):
            self.compute([b for b in operation.operands if b is not None and not b.is_known])
            pending = []
        reason = self._too_large(operation)
        if reason is not None:
            raise Unfoldable(reason)
        try:
            arrays = self._run_onnxruntime([*pending, operation], wanted)
        except EvaluationError as error:
            if pending:
                raise Unfoldable(str(error)) from error
            try:
                computed = reference.run(operation, self._functions)
            except EvaluationError as second:
                raise Unfoldable(f"{error}; {second}") from second
            arrays = [a for a in computed if a is not None]
        by_output = {k: array for (_, k), array in zip(wanted, arrays, strict=True)}
        return [
            self._adopt(by_output[k]) if k in by_output else None
            for k in range(len(operation.node.outputs))
        ]

    def _adopt(self, array: Array) -> Buffer:
        return self._pool.adopt(array, ir.DataType.from_numpy(array.dtype))

    # ------------------------------------------------------------ what was postponed

    def compute(self, buffers: Sequence[Buffer]) -> None:
        """Compute deferred buffers and what they need; other deferred buffers stay so.

        Raises:
            ComputationFailed: operations among them cannot be computed; the others are.
        """
        with np.errstate(all="ignore"):  # also when a tensor is read, long after the pass
            failures = self._compute(postponed(buffers), buffers)[1]
        if failures:
            raise ComputationFailed(failures)

    def source(self, buffer: Buffer) -> Source | None:
        """What computes a deferred buffer piece by piece; what it needs besides is computed now.

        None if that cannot be: the buffer is known then.

        Raises:
            ComputationFailed: operations below it cannot be computed.
        """
        operations = postponed([buffer])
        if not operations or not is_fusable(operations[-1]):
            self.compute([buffer])
            return None
        program = None
        with np.errstate(all="ignore"):
            inlined, failures = self._compute(operations[:-1], [], buffer)
            if not failures:
                program = self._lower(buffer, inlined, failures, bounded=False)
        if failures:
            raise ComputationFailed(failures)
        return None if program is None else program[0]

    def _compute(
        self,
        operations: list[Operation],
        wanted: Sequence[Buffer],
        streamed: Buffer | None = None,
    ) -> tuple[set[Buffer], dict[Operation, str]]:
        """Compute what is wanted and what ``streamed`` needs; returns what is not stored for it."""
        failures: dict[Operation, str] = {}
        inlined: set[Buffer] = set()
        stored: set[Buffer] = set()
        in_pieces: set[Operation] = set()
        everything, targets = operations, wanted
        if streamed is not None:
            assert isinstance(streamed.deferred, Operation)
            everything, targets = [*operations, streamed.deferred], [*wanted, streamed]
        streams = {o for o in operations if is_streamed(o)}
        if streams or any(is_large(operation) for operation in everything):
            inlined, stored = choose(everything, targets, streams.__contains__, _references)
            in_pieces = {o for o in operations if o in streams or is_fusable(o)}
        for phase, engine_is_numpy in phases(operations, in_pieces):
            if not engine_is_numpy:
                self._compute_onnxruntime(phase, failures)
                continue
            for operation in phase:
                if operation in streams:
                    self._compute_stream(operation, inlined, failures)
                elif operation in in_pieces:
                    for buffer in operation.results:
                        if buffer in stored and awaits(buffer, operation):
                            self._store(buffer, inlined, failures, bounded=streamed is None)
                elif is_ready(operation):
                    self._compute_numpy(operation, failures)
        return inlined, failures

    def _store(
        self,
        buffer: Buffer,
        inlined: Collection[Buffer],
        failures: dict[Operation, str],
        *,
        bounded: bool,
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
        lowered = self._lower(buffer, inlined, failures, bounded=bounded, compact=True)
        if lowered is None:
            return
        program, shape = lowered
        if bounded and program.nbytes > self._working_set:
            failures[operation] = f"computing it needs {program.nbytes:,} bytes of memory"
            return
        array = self._pool.store(program)
        if array.size == buffer.size:
            array = array.reshape(buffer.shape)
        else:
            array = np.broadcast_to(array.reshape(shape), buffer.shape)
        self._pool.fulfil(buffer, array)

    def _lower(
        self,
        buffer: Buffer,
        inlined: Collection[Buffer],
        failures: dict[Operation, str],
        *,
        bounded: bool,
        compact: bool = False,
        keep_axes: bool = False,
    ) -> tuple[Program, tuple[int, ...]] | None:
        """The program for a buffer; None if it has become known on the way, or cannot be had."""
        while keep_axes or not buffer.is_known:
            try:
                return lower(buffer, inlined, compact=compact, keep_axes=keep_axes)
            except Missing:
                return None  # what it needs has failed
            except Blocked as blocked:
                self._store(blocked.buffer, inlined, failures, bounded=bounded)
                if not blocked.buffer.is_known:
                    return None
        return None

    def _compute_stream(
        self, operation: Operation, inlined: Collection[Buffer], failures: dict[Operation, str]
    ) -> None:
        """A reduction, piece by piece if its bits allow it."""
        if not any(awaits(b, operation) for b in operation.results):
            return
        first = operation.operands[0]
        assert first is not None
        compact = is_extreme(operation)
        lowered = self._lower(
            first, inlined, failures, bounded=True, compact=compact, keep_axes=True
        )
        if lowered is not None and lowered[0].nbytes <= self._working_set:
            with contextlib.suppress(NotExact):
                result = reduced(operation, lowered[0], self._whole, self._pool)
                self._fulfil(operation, [result], failures)
                return
        if not first.is_known:
            self._store(first, inlined, failures, bounded=True)
        if not is_ready(operation):
            return
        if operation.kernel is not None:
            self._compute_numpy(operation, failures)
        else:
            self._compute_onnxruntime([operation], failures)

    def _whole(self, operation: Operation) -> Array:
        """The result of an operation with known operands. Raises NotExact if it is not certain."""
        if operation.kernel is not None:
            with contextlib.suppress(NotExact):
                return self._call(
                    operation,
                    Kind.GENERAL,
                    [None if b is None else b.array() for b in operation.operands],
                )[0]
        try:
            return self._run_onnxruntime([operation], [(operation, 0)])[0]
        except EvaluationError as error:
            raise NotExact(str(error)) from error

    def uncertain(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The deferred buffers that these need and whose computation could fail.

        What is done to them afterwards cannot.
        """
        return [
            b
            for operation in postponed(buffers)
            if not is_fusable(operation)
            and (operation.kernel is None or not cannot_fail(operation))
            for b in operation.results
            if b is not None and awaits(b, operation) and b.references
        ]

    def _compute_numpy(self, operation: Operation, failures: dict[Operation, str]) -> None:
        assert operation.kernel is not None
        if not any(awaits(b, operation) for b in operation.results):
            return
        reason = self._too_large(operation)
        if reason is not None:
            failures[operation] = reason
            return
        arrays = [None if b is None else b.array() for b in operation.operands]
        kind = operation.kernel.kind_for(
            [None if a is None else a.dtype for a in arrays], operation.attributes
        )
        try:
            computed = self._call(operation, kind, arrays)
        except NotExact:
            operation.kernel = None
            self._compute_onnxruntime([operation], failures)
            return
        except (Unfoldable, MemoryError) as error:
            failures[operation] = str(error) or "out of memory"
            return
        del arrays
        self._fulfil(operation, list(computed), failures)

    def _compute_onnxruntime(
        self, operations: Sequence[Operation], failures: dict[Operation, str]
    ) -> None:
        operations = self._computable(operations, failures)
        if not operations:
            return
        wanted = used_outside(operations)
        try:
            arrays = self._run_onnxruntime(operations, wanted)
        except EvaluationError as error:
            if len(operations) == 1:
                self._compute_otherwise(operations[0], str(error), failures)
                return
            # somewhere in there is one that onnxruntime has no kernel for
            half = len(operations) // 2
            self._compute_onnxruntime(operations[:half], failures)
            self._compute_onnxruntime(operations[half:], failures)
            return
        by_operation: dict[Operation, dict[int, Array]] = {}
        for (operation, index), array in zip(wanted, arrays, strict=True):
            by_operation.setdefault(operation, {})[index] = array
        for operation, computed in by_operation.items():
            results = [computed.get(k) for k in range(len(operation.results))]
            self._fulfil(operation, results, failures)

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
            reason = self._too_large(operation)
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
            self._compute_numpy(operation, failures)
        else:
            try:
                computed = reference.run(operation, self._functions)
            except EvaluationError as error:
                failures[operation] = f"{reason}; {error}"
                return
            self._fulfil(operation, computed, failures)

    def _fulfil(
        self,
        operation: Operation,
        computed: Sequence[Array | None],
        failures: dict[Operation, str],
    ) -> None:
        for buffer, array in zip(list(operation.results), computed, strict=False):
            if buffer is None or array is None or not awaits(buffer, operation):
                continue
            try:
                self._pool.fulfil(buffer, array)
            except ValueError as error:
                self.distrusted.add(operation.node)
                failures[operation] = f"inference and evaluation disagree: {error}"

    def _run_onnxruntime(
        self, operations: Sequence[Operation], wanted: Sequence[onnxruntime.Output]
    ) -> list[Array]:
        return onnxruntime.run(operations, wanted, self._functions, self._ir_version)

    def _call(
        self, operation: Operation, kind: Kind, arrays: Sequence[Array | None]
    ) -> Sequence[Array]:
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

    def _too_large(self, operation: Operation) -> str | None:
        """Why an operation does not fit in memory, or None."""
        needed = sum(_memory_of(b) for b in operation.operands if b is not None)
        needed += sum(b.nbytes for b in operation.results if b is not None and not b.type_proto)
        if needed > self._working_set and not _is_free(operation):
            return f"computing it needs {needed:,} bytes of memory"
        return None


def _references(buffer: Buffer) -> int:
    """How many users of a buffer are sure to come: a value alone may have none."""
    return buffer.references - (0 if buffer.pool.is_settled else buffer.bindings)


def _is_complete(result: inference.ResultType | None) -> bool:
    if result is None:
        return False
    return result.shape is not None or result.dtype == ir.DataType.UNDEFINED


def _may_be_sizes(buffer: Buffer) -> bool:
    """A deferred list of integers: a shape or axes, whose values decide about a result's shape."""
    return (
        not buffer.is_known
        and len(buffer.shape) <= 1
        and buffer.dtype in (ir.DataType.INT64, ir.DataType.INT32)
        and buffer.nbytes <= EAGER_BYTES
    )


def _bytes_of(buffers: Sequence[Buffer | None]) -> int:
    return sum(b.nbytes for b in buffers if b is not None)


def _memory_of(buffer: Buffer) -> int:
    """Bytes an evaluator has to hold for an operand; a mapped or zero-stride one costs its view."""
    if buffer.type_proto is not None:
        return 0
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
