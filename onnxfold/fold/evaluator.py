"""The evaluator, which computes operations immediately or defers them.

NumPy kernels immediately compute views of known operands, small results of known operands, and
results that depend only on shapes. An operation whose result types cannot be inferred is also
computed immediately. All other operations are deferred. The result of a deferred operation is a
buffer with a shape and a dtype. The elements are computed when they are needed.
:mod:`onnxfold.fold.engines` selects the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from onnxfold.fold import inference
from onnxfold.fold.block_execution import Streams, is_large, is_streamable
from onnxfold.fold.engines import Engines
from onnxfold.fold.evaluation import TimeLimit
from onnxfold.fold.operation import (
    EAGER_BYTES,
    Operation,
    deferred_operations,
    effective_bytes,
    one_element_array,
)
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.fold.pool.blocks import KEPT_BYTES, Source
from onnxfold.fold.pool.buffer import Array
from onnxfold.fold.wide import Widening
from onnxfold.ops.numpy_kernels import Kind, NotExact, Postpone, check_representable
from onnxfold.support.process_state import THIS_PROCESS, ProcessState


class ComputationFailed(Exception):
    """A failure of deferred operations. The model must keep the nodes of these operations.

    ``failures`` has the reason for each operation.
    """

    def __init__(self, failures: Mapping[Operation, str]) -> None:
        super().__init__("; ".join(failures.values()))
        self.failures = failures


class Evaluator:
    """An evaluator of operations on the buffers of one pool.

    ``wide`` selects wide precision. The other arguments are described at `Engines`.
    """

    def __init__(
        self,
        pool: Pool,
        functions: Iterable[ir.Function] = (),
        exact: bool = True,
        time: TimeLimit | None = None,
        wide: bool = False,
        process: ProcessState = THIS_PROCESS,
        libraries: Sequence[str] = (),
    ) -> None:
        self.pool = pool
        self.rounded: dict[str, str] = {}
        """The reasons why values could not be computed in wide precision, by the value's name."""
        self._widening = Widening(pool, self._apply, self.rounded) if wide else None
        self.apply = self._apply if self._widening is None else self._widening.apply
        """Return the results of an operation: known or deferred buffers, or None without a name.

        Raises:
            Unfoldable: No engine can compute the operation. The message is the reason.
            ComputationFailed: The operation depends on a deferred operation that failed.
        """
        self._engines = Engines(pool, functions, exact, time, process, libraries)
        self.time = self._engines.time
        pool.evaluator = self

    def _apply(self, operation: Operation) -> list[Buffer | None]:
        if operation.kernel is not None:
            results = self._apply_kernel(operation)
            if results is not None:
                return results
        self._engines.admit_graphs(operation)
        types = inference.infer(operation)
        outputs = operation.node.outputs
        if any(o.name and t is None for o, t in zip(outputs, types, strict=True)):
            # Only the computation determines the types. onnxruntime computes the results, because a
            # NumPy kernel would not stop at the memory limit.
            operation.kernel = None
            self.compute([b for b in operation.operands if b is not None])
            indices = [k for k, output in enumerate(outputs) if output.name]
            computed: list[Buffer | None] = [None] * len(outputs)
            for k, array in zip(indices, self._engines.evaluate(operation, indices), strict=True):
                computed[k] = self.pool.adopt(array)
            return computed
        results = []
        for result_type in types:
            if result_type is None:
                results.append(None)
                continue
            shape, dtype = result_type
            check_representable(shape, dtype.numpy())
            results.append(self.pool.defer(shape, dtype, operation))
        operation.results = results
        return results

    def _apply_kernel(self, operation: Operation) -> list[Buffer | None] | None:
        """Return the results of the NumPy kernel, known or deferred.

        The result is None if inference must provide the types of the results, or if the kernel may
        differ from onnxruntime.
        """
        operands = operation.operands
        kind = operation.kind
        unknown = [b for b in operands if b is not None and b.elements is None]
        if kind is Kind.VIEW and unknown:
            # integers such as a shape or axes determine the shape of the result
            lists = [b for b in unknown if len(b.shape) <= 1]
            integers = [b for b in lists if b.dtype in (ir.DataType.INT64, ir.DataType.INT32)]
            self.compute([b for b in integers if b.nbytes <= EAGER_BYTES])
        if kind is Kind.SHAPE:
            # the shape that onnxruntime computes may differ from the shape that onnx infers
            without_kernel = [o for o in deferred_operations(unknown) if o.kernel is None]
            self.compute(
                [b for operation in without_kernel for _, b in operation.pending_results()]
            )
        is_immediate = kind is Kind.SHAPE or not unknown or all(b.is_known for b in unknown)
        if kind in (Kind.GENERAL, Kind.ASSEMBLED) and not (
            is_immediate and sum(b.nbytes for b in operands if b is not None) <= EAGER_BYTES
        ):
            return None
        arrays: list[Array | None] = []
        for b in operands:
            if b is None:
                arrays.append(None)
            else:
                arrays.append(b.array() if b.is_known else one_element_array(b))
        if kind is Kind.ELEMENTWISE and not (
            is_immediate and effective_bytes(arrays) <= EAGER_BYTES
        ):
            # one repeated element suffices for the shape and dtype of the result
            is_immediate = False
            arrays = [None if b is None else one_element_array(b) for b in operands]
        try:
            computed = operation.call(arrays, max_bytes=EAGER_BYTES)
        except NotExact:
            operation.kernel = None
            return None
        except Postpone:
            return None
        if is_immediate:
            return [*map(self.pool.adopt, computed)]
        results = [
            self.pool.defer(a.shape, ir.DataType.from_numpy(a.dtype), operation) for a in computed
        ]
        operation.results = results
        return list(results)

    def compute(self, buffers: Sequence[Buffer]) -> None:
        """Compute deferred buffers and their dependencies.

        Raises:
            ComputationFailed: Operations failed. All other operations are computed before.
        """
        buffers = [buffer for buffer in buffers if not buffer.is_known]
        if not buffers:
            return
        for buffer in buffers:  # the consumers may not have retained them yet
            self.pool.retain(buffer)
        try:
            # a tensor may be read long after the pass, when NumPy's error state is another one
            with np.errstate(all="ignore"):
                failures = self._compute(deferred_operations(buffers), buffers).failures
        finally:
            for buffer in buffers:
                buffer.references -= 1
        if failures:
            self._fail(failures)

    def source(self, buffer: Buffer) -> Source | None:
        """Compute the dependencies of a deferred buffer, and return a source of its blocks.

        If the operation of the buffer cannot be computed block by block, the buffer is computed,
        and the result is None.

        Raises:
            ComputationFailed: An operation failed.
        """
        operations = deferred_operations([buffer])
        if not operations or not is_streamable(operations[-1]):
            self.compute([buffer])
            return None
        with np.errstate(all="ignore"):
            streams = self._compute(operations, [], buffer)
        if streams.failures:
            self._fail(streams.failures)
        return streams.source(buffer)

    def _fail(self, failures: Mapping[Operation, str]) -> NoReturn:
        if self._widening is not None:
            self._widening.record_failures(failures)
        raise ComputationFailed(failures)

    def _compute(
        self, operations: list[Operation], required: Sequence[Buffer], root: Buffer | None = None
    ) -> Streams:
        """Compute the required buffers, and the dependencies of a root that is read in blocks."""
        streams = Streams(self.pool, self.time, operations, required, root)
        for operation in operations:
            if operation in streams.operations:
                streams.compute(operation)
                continue
            large_operands = [
                b for b in operation.operands if b is not None and b.nbytes > KEPT_BYTES
            ]
            self._engines.compute(operation, streams.failures)
            for buffer in large_operands:
                buffer.release_pages()
        return streams

    def fallible_buffers(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Return the deferred buffers whose computation could fail.

        ``buffers`` and all their dependencies are considered. A buffer is omitted if another
        returned buffer depends on it.
        """
        operations = deferred_operations(buffers)
        if not operations:
            return []
        fallible: list[Buffer] = []
        for operation in operations:
            if is_streamable(operation):
                continue
            if is_large(operation) or operation.kind is Kind.GENERAL:
                fallible += [buffer for _, buffer in operation.pending_results()]
        operands = {b for operation in deferred_operations(fallible) for b in operation.operands}
        return [buffer for buffer in fallible if buffer not in operands]
