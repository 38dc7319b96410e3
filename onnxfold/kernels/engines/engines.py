"""Computing operations whose operands are known: NumPy kernels, onnxruntime, the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.engines import runner
from onnxfold.kernels.engines.assembly import Assembly, assemble, oldest_opsets
from onnxfold.kernels.engines.certain import is_certain
from onnxfold.kernels.engines.child import Feed, Stopped, child
from onnxfold.kernels.engines.limits import current_limit
from onnxfold.kernels.engines.runner import EvaluationError, Raw, Rejected, ThreadDependent
from onnxfold.kernels.extents import EAGER_BYTES, collapse, effective_bytes
from onnxfold.kernels.operation import Operation, Output
from onnxfold.kernels.registry import Kind, NotExact, Unfoldable
from onnxfold.kernels.schedule import awaits, used_outside
from onnxfold.pool import Buffer, Pool
from onnxfold.pool.buffer import Array, distinct, weight_of
from onnxfold.storage.layout import nbytes_of

# Whatever the limit of memory: bytes that everything may take.
_LEAST_MEMORY = 16 << 20
# What travels inside a model is there as a message, as its bytes, and in the engine, parsed.
_COPIES = 4
_TOO_LARGE = "computing it takes {:,} bytes of memory, more than the limit"
_TENSOR = ir.AttributeType.TENSOR


class Engines:
    """Computes operations as a whole. What cannot be computed is noted in ``failures``.

    Args:
        pool: Where operands and results live; its memory limit is also that of one computation.
        functions: The model's local functions, for calls of them.
        ir_version: The model's IR version.
        distrusted: Gets the nodes for which onnx's shape inference turns out to be wrong.
        exact: Compute nothing whose result depends on how many threads onnxruntime has.
    """

    def __init__(
        self,
        pool: Pool,
        functions: Iterable[ir.Function] = (),
        ir_version: int = 8,
        distrusted: set[ir.Node] | None = None,
        exact: bool = True,
    ) -> None:
        self._pool = pool
        self._exact = exact
        self._ir_version = ir_version
        self._functions = {f.identifier(): f for f in functions}
        self._serialized: list[onnx.FunctionProto] | None = None
        self._too_new: Mapping[str, int] | None = None
        """Opsets that onnxruntime turned out not to know."""
        self.time = current_limit()
        self.memory = max(pool.memory_limit, _LEAST_MEMORY)
        """Bytes that one computation may take outside the files of the model."""
        self.distrusted = distrusted if distrusted is not None else set()

    def numpy(self, operation: Operation, failures: dict[Operation, str]) -> None:
        """Compute one operation by its NumPy kernel, or by onnxruntime where that may differ."""
        assert operation.kernel is not None
        if not any(awaits(b, operation) for b in operation.results):
            return
        reason = self.objection(operation)
        if reason is not None:
            failures[operation] = reason
            return
        arrays = [None if b is None else b.array() for b in operation.operands]
        kind = operation.kernel.kind_for(
            [None if a is None else a.dtype for a in arrays], operation.attributes
        )
        try:
            with self.time.spending():
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
        # one that another engine is to go on with is asked for all it gives
        wanted = used_outside(operations) or _outputs_of(operations[-1])
        if not wanted:
            return
        try:
            arrays = self.run(operations, wanted)
        except EvaluationError as error:
            if len(operations) == 1:
                self._compute_otherwise(operations[0], error, failures)
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
            reason = self.objection(operation)
            if reason is not None:
                failures[operation] = reason
                continue
            chosen[operation] = None
        return list(chosen)

    def _compute_otherwise(
        self, operation: Operation, error: EvaluationError, failures: dict[Operation, str]
    ) -> None:
        """One operation that onnxruntime refused: its NumPy kernel, or the reference evaluator."""
        if operation.kernel is not None and not isinstance(error, Stopped | ThreadDependent):
            self.numpy(operation, failures)
            return
        try:
            computed = self.refused(operation, error)
        except EvaluationError as reason:
            failures[operation] = str(reason)
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

    # ------------------------------------------------------------ engines

    def run(self, operations: Sequence[Operation], wanted: Sequence[Output]) -> list[Array]:
        """Evaluate operations by onnxruntime.

        Raises:
            Stopped: they take too much time or memory, or it crashes.
            ThreadDependent: their results depend on the number of threads.
            EvaluationError: it refuses them.
        """
        is_here = all(is_certain(operation, self.distrusted) for operation in operations)
        functions = self._called_by(operations)

        def computed(opsets: Mapping[str, int]) -> list[Array]:
            assembly = assemble(operations, wanted, functions, self._ir_version, opsets)
            return self._evaluate("onnxruntime", assembly, is_here)

        # many ops are functions to onnxruntime, whose bodies depend on the opset; only models that
        # are newer than it is are computed at another one than their own
        own, oldest = operations[0].opsets, oldest_opsets(operations)
        if self._too_new == own:
            return computed(oldest)
        try:
            return computed(own)
        except (Stopped, ThreadDependent, Rejected):
            raise
        except EvaluationError:
            if oldest == own:
                raise
            results = computed(oldest)
            self._too_new = own
            return results

    def refused(self, operation: Operation, error: EvaluationError) -> list[Array | None]:
        """All results, by the reference evaluator, of an operation that onnxruntime refused.

        Raises:
            EvaluationError: it cannot compute it either, or must not be asked.
        """
        if isinstance(error, Stopped | ThreadDependent | Rejected):
            raise error
        if any(b is not None and b.type_proto is not None for b in operation.results):
            raise error
        wanted = _outputs_of(operation)
        functions = self._called_by([operation])
        assembly = assemble([operation], wanted, functions, onnx.IR_VERSION, operation.opsets)
        try:
            computed = self._evaluate("reference", assembly, is_here=False)
        except EvaluationError as second:
            raise EvaluationError(f"{error}; {second}") from second
        results: list[Array | None] = [None] * len(operation.node.outputs)
        for (_, k), array in zip(wanted, computed, strict=True):
            results[k] = array
        return results

    def _evaluate(self, engine: str, assembly: Assembly, is_here: bool) -> list[Array]:
        if not self.time.share():
            raise Stopped(self.time.reason)
        model = assembly.model.SerializeToString()
        if is_here:
            feeds = {
                name: Raw(b.dtype.value, b.shape, _flat(b.array()))
                for name, b in assembly.feeds.items()
            }
            with self.time.spending():
                results = runner.onnxruntime(model, feeds, assembly.outputs, exact=self._exact)
        else:
            results = self._in_child(engine, model, assembly)
        return [_array(raw) for raw in results]

    def _in_child(self, engine: str, model: bytes, assembly: Assembly) -> list[Raw]:
        feeds = {n: Feed(b.dtype.value, b.array(), b.span()) for n, b in assembly.feeds.items()}
        used = self._pool.statistics.live_bytes
        used += sum(feed.array.nbytes for feed in feeds.values() if feed.span is None)
        return child.run(
            engine,
            model,
            feeds,
            assembly.outputs,
            exact=self._exact,
            limit=max(self.memory // 4, self.memory - used),
            time=self.time,
        )

    def _called_by(self, operations: Sequence[Operation]) -> list[onnx.FunctionProto]:
        """The model's functions, if one of them is called."""
        pending = [o.node for o in operations] if self._functions else []
        while pending:
            node = pending.pop()
            if node.op_identifier() in self._functions:
                if self._serialized is None:
                    functions = self._functions.values()
                    self._serialized = [ir.serde.serialize_function(f) for f in functions]
                return self._serialized
            for graph in subgraphs_of(node):
                pending.extend(graph)
        return []

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

    def objection(self, operation: Operation) -> str | None:
        """Why an operation takes too much memory or time, or None."""
        needed = sum(_memory_of(b) for b in operation.operands if b is not None)
        needed += sum(b.nbytes for b in operation.results if b is not None)
        if needed <= EAGER_BYTES or _is_free(operation):
            return None
        if needed > self.memory:
            return _TOO_LARGE.format(needed)
        self._pool.make_room(needed)
        return self.time.reason if needed > self.time.nbytes else None

    def objection_to_graphs(self, operation: Operation) -> str | None:
        """Why what holds graphs or calls a function cannot be looked at: engines get copies of all
        constants in there.
        """
        tensors: dict[int, ir.TensorProtocol] = {}
        pending = list(subgraphs_of(operation.node))
        if operation.node.op_identifier() in self._functions:
            pending += [function.graph for function in self._functions.values()]
        while pending:
            graph = pending.pop()
            found = [value.const_value for value in graph.initializers.values()]
            for node in graph:
                pending.extend(subgraphs_of(node))
                found += [a.value for a in node.attributes.values() if a.type == _TENSOR]
            tensors.update((id(tensor), tensor) for tensor in found if tensor is not None)
        needed = _COPIES * sum(nbytes_of(tensor) for tensor in tensors.values())
        return _TOO_LARGE.format(needed) if needed > self.memory else None

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
    """Bytes an evaluator has to hold for an operand; one that is there in order costs none."""
    if buffer.dtype == ir.DataType.STRING and buffer.is_known:
        once = distinct(buffer.array())
        return _COPIES * weight_of(once) * buffer.size // max(1, once.size)
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


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _array(raw: Raw) -> Array:
    """A tensor of an engine as the pool has it."""
    dtype = ir.DataType(raw.dtype)
    if dtype == ir.DataType.STRING:
        texts = np.empty(len(raw.data), object)
        texts[:] = [s if isinstance(s, bytes) else s.encode() for s in raw.data]
        return texts.reshape(raw.shape)
    if dtype.bitwidth < 8:
        return np.asarray(ir.PackedTensor(raw.data, dtype, shape=ir.Shape(raw.shape)).numpy())
    if not raw.data.size:
        return np.empty(raw.shape, dtype.numpy())
    return raw.data.view(dtype.numpy()).reshape(raw.shape)


def _outputs_of(operation: Operation) -> list[Output]:
    """All tensors it gives."""
    results = operation.results or [None] * len(operation.node.outputs)
    return [
        (operation, k)
        for k, (output, made) in enumerate(zip(operation.node.outputs, results, strict=True))
        if output.name and (made is None or made.type_proto is None)
    ]
