"""The selection of the engine that computes an operation: a NumPy kernel or onnxruntime."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.fold.evaluation import (
    EvaluationError,
    TimeLimit,
    evaluate_isolated,
    onnxruntime,
    open_model,
    time_for,
)
from onnxfold.fold.inference import is_elementwise, tensor_proto, type_of
from onnxfold.fold.operation import (
    EAGER_BYTES,
    OWN,
    Operation,
    deferred_operations,
    effective_bytes,
)
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.fold.pool.buffer import Array, allocated_bytes
from onnxfold.ir.graphs import nodes_within, subgraphs_of
from onnxfold.ir.storage import data_bytes
from onnxfold.ir.storage.encode import function_proto
from onnxfold.ir.storage.tensors import tensors_in
from onnxfold.ops import Trait, definition_of
from onnxfold.ops.numpy_kernels import Kind, NotExact, Unfoldable
from onnxfold.ops.products import MatMul
from onnxfold.support.arrays import distinct
from onnxfold.support.forks import cached_property
from onnxfold.support.isolated import Processes
from onnxfold.support.process_state import ProcessState

# Minimum evaluation budget in bytes, regardless of `--memory-limit`.
_MIN_MEMORY = 16 << 20
# Data inside a model is held several times: as a protobuf message, serialized, and parsed by
# onnxruntime.
_COPIES = 4
# Upper bound for the number of multiplications that finish within milliseconds.
_MAX_PRODUCTS = 1 << 24
# Number of recently used sessions that are kept open in this process.
_KEPT_SESSIONS = 8
# Operands of up to this many bytes are initializers of a model for a child process. Larger operands
# are inputs of the model.
_INLINE_BYTES = 4096
# The first IR version with overloads of functions. All supported versions of onnxruntime read it,
# while the version of the optimized model may be newer than the installed onnxruntime supports.
_IR_VERSION = 10
_TOO_LARGE = "computing it takes {:,} bytes of memory, more than the limit"


class Engines:
    """The engines that compute complete results within the time and memory limits of a run.

    A single computation must not exceed the memory limit of the pool, unless the limit is lower
    than a minimum. Recently used sessions in this process are kept open as long as this object.

    Args:
        pool: The pool of the operands and results.
        functions: The functions of the model.
        exact: Whether to reject results that depend on the number of onnxruntime's threads. This
            does not apply to wide precision, where rounding removes the bits that differ.
        time: The limit of the CPU time; None for the limit of an empty model.
        process: The owner of the child processes that evaluate operations.
        libraries: The paths of shared libraries with custom ops.
    """

    def __init__(
        self,
        pool: Pool,
        functions: Iterable[ir.Function],
        exact: bool,
        time: TimeLimit | None,
        process: ProcessState,
        libraries: Sequence[str] = (),
    ) -> None:
        self._pool = pool
        self._process = process
        self._exact = exact
        self._functions = {f.identifier(): f for f in functions}
        self._libraries = list(libraries)
        self.time = time or time_for(0)
        self._memory = max(pool.memory_limit, _MIN_MEMORY)
        """Maximum bytes of the memory of one computation, without mapped files of the model."""
        self._open_cached_model = functools.lru_cache(_KEPT_SESSIONS)(open_model)

    def compute(self, operation: Operation, failures: dict[Operation, str]) -> None:
        """Compute the missing results of an operation, unless an operand failed.

        A failure is added to ``failures`` with its reason.
        """
        pending = operation.pending_results()
        if not pending or any(o.pending_results() for o in deferred_operations(operation.operands)):
            return
        try:
            arrays = self.evaluate(operation, [k for k, _ in pending])
        except (Unfoldable, MemoryError) as error:
            failures[operation] = str(error) or "out of memory"
            return
        for (_, buffer), array in zip(pending, arrays, strict=True):
            try:
                self._pool.fulfil(buffer, array)
            except ValueError as error:
                failures[operation] = f"the result differs from shape inference: {error}"

    def evaluate(self, operation: Operation, indices: Sequence[int]) -> list[Array]:
        """Return the results with these indices.

        Raises:
            Unfoldable: No engine can compute the results. The message is the reason.
        """
        self._admit(operation)
        if operation.kernel is not None:
            arrays = [None if b is None else b.array() for b in operation.operands]
            with contextlib.suppress(NotExact), self.time.spending():
                computed = operation.call(arrays)
                return [computed[k] for k in indices]
            operation.kernel = None
        try:
            return self._run_onnxruntime(operation, indices)
        except EvaluationError as error:
            raise Unfoldable(str(error)) from error

    def _run_onnxruntime(self, operation: Operation, indices: Sequence[int]) -> list[Array]:
        """Return the results with these indices, computed by onnxruntime.

        The operation runs in a child process, unless `_is_safe_in_process` returns True.

        Raises:
            EvaluationError: The operation failed, exceeded a limit, or its results are not exact.
        """
        if not self.time.share():
            raise EvaluationError(self.time.reason)
        exact = self._exact and not operation.is_wide
        in_process = _is_safe_in_process(operation)
        nodes = nodes_within([operation.node]) if self._functions else ()
        is_call = any(n.op_identifier() in self._functions for n in nodes)
        functions = self._function_protos if is_call else []
        proto, operands = _assemble(operation, indices, functions, general=in_process)
        model = proto.SerializeToString()
        outputs = [output.name for output in proto.graph.output]
        feeds = {name: b.array() for name, b in operands.items()}
        if in_process:
            # operations that differ only in their operands share a session
            create_session = open_model if proto.graph.initializer else self._open_cached_model
            with self.time.spending():
                results = onnxruntime(
                    model, feeds, outputs, exact=exact, create_session=create_session
                )
            return [_encode_strings(array) for array in results]
        used_bytes = self._pool.statistics.live_bytes
        used_bytes += sum(b.nbytes for b in operands.values() if b.span() is None)
        results = evaluate_isolated(
            model,
            feeds,
            outputs,
            exact=exact,
            limit=self.time,
            libraries=self._libraries,
            memory=max(self._memory // 4, self._memory - used_bytes),
            processes=self._process.shared(Processes),
        )
        return [_encode_strings(array) for array in results]

    @cached_property
    def _function_protos(self) -> list[onnx.FunctionProto]:
        return list(map(function_proto, self._functions.values()))

    def _admit(self, operation: Operation) -> None:
        """Free memory for an operation.

        Raises:
            Unfoldable: The operation exceeds the limit of memory or time.
        """
        required_bytes = sum(_copied_bytes(b) for b in operation.operands if b is not None)
        required_bytes += sum(b.nbytes for b in operation.results if b is not None)
        if required_bytes <= EAGER_BYTES or _takes_no_memory(operation):
            return
        if required_bytes > self._memory:
            raise Unfoldable(_TOO_LARGE.format(required_bytes))
        self._pool.make_room(required_bytes)
        if required_bytes > self.time.nbytes:
            raise Unfoldable(self.time.reason)

    def admit_graphs(self, operation: Operation) -> None:
        """Raise an exception if the constants in a node's subgraphs or functions are too large.

        Shape inference and onnxruntime get copies of all these constants.

        Raises:
            Unfoldable: The copies exceed the memory limit.
        """
        graphs = list(subgraphs_of(operation.node))
        if operation.node.op_identifier() in self._functions:
            graphs += [function.graph for function in self._functions.values()]
        if not graphs:
            return
        tensors = tensors_in(graphs)
        required_bytes = _COPIES * sum(data_bytes(t.dtype, t.shape) for t in tensors)
        if required_bytes > self._memory:
            raise Unfoldable(_TOO_LARGE.format(required_bytes))


def _assemble(
    operation: Operation,
    indices: Sequence[int],
    functions: Sequence[onnx.FunctionProto],
    *,
    general: bool,
) -> tuple[onnx.ModelProto, dict[str, Buffer]]:
    """Return a model of an operation, and the operands that are inputs of the model, by name.

    The results with these indices are the outputs of the model. In a ``general`` model, all
    operands are inputs with dynamic dimensions, except strings and elements narrower than a byte.
    The model can be used for operands of other sizes, but onnxruntime may compute other bits than
    it computes from initializers.
    """
    imports = dict(operation.opsets)
    for function in functions:
        imports.setdefault(function.domain, 1)
    model = onnx.ModelProto(ir_version=_IR_VERSION, functions=functions)
    for domain, version in imports.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    graph = model.graph
    graph.name = "fold"
    feeds: dict[str, Buffer] = {}
    names: dict[Buffer | None, str] = {None: ""}
    inputs = operation.inputs
    for buffer in inputs:
        if buffer is not None and buffer not in names:
            names[buffer] = f"{OWN}c{len(names)}"
            _add_operand(graph, feeds, buffer, names[buffer], general)
    for value, buffer in zip(operation.captures, operation.operands[len(inputs) :], strict=True):
        assert buffer is not None and value.name is not None
        _add_operand(graph, feeds, buffer, value.name, general)
    outputs = [f"{OWN}r{k}" if o.name else "" for k, o in enumerate(operation.node.outputs)]
    graph.node.append(operation.to_proto([names[b] for b in inputs], outputs))
    graph.output.extend(onnx.ValueInfoProto(name=f"{OWN}r{index}") for index in indices)
    return model, feeds


def _add_operand(
    graph: onnx.GraphProto, feeds: dict[str, Buffer], buffer: Buffer, name: str, general: bool
) -> None:
    """Add a known operand to the initializers of the graph, or to its inputs and the feeds."""
    inline = buffer.dtype == ir.DataType.STRING or buffer.dtype.bitwidth < 8
    if inline or buffer.nbytes <= (0 if general else _INLINE_BYTES):
        graph.initializer.append(tensor_proto(buffer.array(), name))
        return
    input_type = type_of(buffer)
    if general:
        for dimension in input_type.tensor_type.shape.dim:
            dimension.Clear()
    graph.input.append(onnx.ValueInfoProto(name=name, type=input_type))
    feeds[name] = buffer


def _is_safe_in_process(operation: Operation) -> bool:
    """Return whether onnxruntime may compute an operation in this process.

    Starting a child process takes a third of a second. Element-wise ops, reductions, small
    products, comparisons and ops with `Trait.ALONG_AXES` use no element as an index or a size. So
    no operand can make these ops crash or hang.
    """
    node = operation.node
    buffers = [b for b in (*operation.operands, *operation.results) if b is not None]
    if node.domain != "" or any(b.dtype == ir.DataType.STRING for b in buffers):
        return False
    definition = definition_of(node)
    traits = definition.traits
    if Trait.REDUCES in traits:
        return True
    if not operation.results:  # onnx could not infer the shape of the result
        return False
    if isinstance(definition, MatMul):
        return math.prod(b.size for b in operation.operands if b is not None) <= _MAX_PRODUCTS
    if traits & (Trait.ALONG_AXES | Trait.ORDERS):
        return True
    dtypes = tuple(None if b is None else b.dtype for b in operation.operands)
    return is_elementwise(node.op_type, operation.opset, dtypes)


def _copied_bytes(buffer: Buffer) -> int:
    """Return the bytes of the copies that an engine makes of an operand.

    An engine reads known numbers in row-major order without a copy. Strings are always copied.
    """
    if buffer.dtype == ir.DataType.STRING and buffer.is_known:
        elements = distinct(buffer.array())
        return _COPIES * allocated_bytes(elements) * buffer.size // max(1, elements.size)
    if buffer.is_known and buffer.array().flags.c_contiguous:
        return 0
    return buffer.nbytes


def _takes_no_memory(operation: Operation) -> bool:
    """Return whether the results take no memory, or only little.

    They are views, or repeat a small array that is computed from repeated elements.
    """
    if operation.kernel is None or not all(b is None or b.is_known for b in operation.operands):
        return False
    if operation.kind is Kind.ELEMENTWISE:
        arrays = [None if b is None else b.array() for b in operation.operands]
        return effective_bytes(arrays) <= EAGER_BYTES
    return operation.kind is Kind.VIEW


def _encode_strings(array: Array) -> Array:
    """Return an array with strings encoded as bytes, as the pool stores them."""
    if not array.dtype.hasobject:
        return array
    encoded = np.empty(array.size, object)
    encoded[:] = [s if isinstance(s, bytes) else s.encode() for s in array.flat]
    return encoded.reshape(array.shape)
