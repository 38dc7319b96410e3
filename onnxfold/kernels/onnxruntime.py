"""Evaluation by onnxruntime's CPU provider: many operations in one session, nothing optimized."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.inference import schema_of, type_of
from onnxfold.kernels.operation import Operation
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array

# Operands up to this many bytes travel inside the session's model, larger ones are fed in place.
_INLINE_BYTES = 4096
# A constant loop that runs longer than this is left to the model.
_TIME_LIMIT_SECONDS = 120.0

# Bytes of a SIMD register in the code that is not chosen by processor (Eigen's).
_ALIGNMENT = 16

# onnxruntime promises to run models from here on.
OLDEST_OPSET = 7

# (operation, index of its output)
Output = tuple[Operation, int]


# A session with so many threads must find what one thread finds. Odd, so that the work is not
# divided where powers of two would be.
_MORE_THREADS = 3


class EvaluationError(Exception):
    """The evaluator cannot run the operations; the message says why in one line."""


class ThreadDependent(EvaluationError):
    """What onnxruntime computes depends on how many threads it has: no value is the right one."""

    def __init__(self) -> None:
        super().__init__("onnxruntime's result depends on how many threads it has")


def run(
    operations: Sequence[Operation],
    wanted: Sequence[Output],
    functions: Sequence[onnx.FunctionProto] = (),
    ir_version: int = 8,
    *,
    exact: bool = True,
) -> list[Array]:
    """Evaluate operations (in topological order) and fetch the wanted results.

    Operands that are results of other operations in the list are wired inside the session; all
    others must be known. Results are arrays over onnxruntime's own memory: nothing is copied.

    With ``exact`` everything is computed twice, by one thread and by several: some sums (a matrix
    times a single column) are added up in another order then, and the model may run with any
    number.

    Raises:
        ThreadDependent: the two differ.
        EvaluationError: onnxruntime has no kernel, refuses the operands, or ran too long.
    """
    model, feeds, outputs = _build(operations, wanted, functions, ir_version)
    try:
        values = {name: _to_ort(array, dtype) for name, (array, dtype) in feeds.items()}
        # of the first only the digests are kept, so that memory holds one set of results
        digests = None
        if exact:
            digests = [_digest(v) for v in _run(model, values, outputs, _MORE_THREADS)]
        results = _run(model, values, outputs, 1)
        if digests is not None and digests != [_digest(value) for value in results]:
            raise ThreadDependent()
        return [_from_ort(result) for result in results]
    except EvaluationError:
        raise
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise EvaluationError(_one_line(error)) from error


def _run(model: onnx.ModelProto, values: dict[str, Any], outputs: list[str], threads: int) -> Any:
    import onnxruntime as ort

    run_options = ort.RunOptions()
    run_options.log_severity_level = 4

    def stop() -> None:
        run_options.terminate = True

    session = session_of(model, threads=threads)
    timer = threading.Timer(_TIME_LIMIT_SECONDS, stop)
    timer.daemon = True
    timer.start()
    try:
        return session.run_with_ort_values(outputs, values, run_options)
    finally:
        timer.cancel()


def session_of(model: onnx.ModelProto, *, threads: int = 0) -> Any:
    """A session of onnxruntime's CPU provider that computes node by node and keeps no memory.

    Args:
        model: The model.
        threads: Of one run; 0 for as many as onnxruntime thinks fit.

    Raises:
        Exception: onnxruntime refuses the model, by one of many classes without a common base.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _build(
    operations: Sequence[Operation],
    wanted: Sequence[Output],
    functions: Sequence[onnx.FunctionProto],
    ir_version: int,
) -> tuple[onnx.ModelProto, dict[str, tuple[Array, ir.DataType]], list[str]]:
    """The session's model, what it is fed, and the names of the wanted outputs."""
    opsets = _oldest_opsets(operations)
    for function in functions:
        opsets.setdefault(function.domain, 1)
    model = onnx.ModelProto(ir_version=max(ir_version, 8))
    model.functions.extend(functions)
    for domain, version in opsets.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    graph = model.graph
    graph.name = "fold"
    names: dict[Buffer, str] = {}
    feeds: dict[str, tuple[Array, ir.DataType]] = {}

    def supply(buffer: Buffer, name: str) -> None:
        array = _aligned(buffer.array()).reshape(buffer.shape)
        if buffer.nbytes <= _INLINE_BYTES or array.dtype.hasobject or buffer.dtype.bitwidth < 8:
            graph.initializer.append(_tensor_proto(array, buffer.dtype, name))
        else:
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_of(buffer)))
            feeds[name] = (array, buffer.dtype)

    produced: dict[Output, str] = {}
    for k, operation in enumerate(operations):
        inputs = []
        for buffer in operation.operands:
            if buffer is None:
                inputs.append("")
                continue
            if buffer not in names:
                names[buffer] = f"c{len(names)}"
                supply(buffer, names[buffer])
            inputs.append(names[buffer])
        for captured, buffer in operation.captures.items():
            supply(buffer, captured)
        outputs = []
        for index, value in enumerate(operation.node.outputs):
            name = f"r{k}_{index}" if value.name else ""
            outputs.append(name)
            produced[operation, index] = name
            result = operation.results[index] if operation.results else None
            if result is not None:
                names[result] = name
        graph.node.append(operation.to_proto(inputs, outputs))
    fetched = []
    for output in wanted:
        name = produced[output]
        fetched.append(name)
        graph.output.append(onnx.ValueInfoProto(name=name))
    return model, feeds, fetched


def _aligned(array: Array) -> Array:
    """The elements in row-major order at an address where onnxruntime would have put them.

    In a file they may begin at any byte, and sums in SIMD registers begin at a multiple of theirs:
    elsewhere they would be added up in another order.
    """
    array = np.require(array, requirements=["C", "A"])
    if array.dtype.hasobject or array.__array_interface__["data"][0] % _ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def _oldest_opsets(operations: Sequence[Operation]) -> dict[str, int]:
    """The oldest opsets at which all the ops mean what they mean at the model's.

    A model may use an opset that is newer than this onnxruntime while its ops are not.
    """
    opsets = dict(operations[0].opsets)
    version = 1
    pending = [o.node for o in operations]
    while pending:
        node = pending.pop()
        for graph in subgraphs_of(node):
            pending.extend(graph)
        if node.domain == "":
            schema = schema_of(node.op_type, opsets.get("", 1), "")
            if schema is None:
                return opsets
            version = max(version, schema.since_version)
    if "" in opsets:
        opsets[""] = max(version, min(opsets[""], OLDEST_OPSET))
    return opsets


def _tensor_proto(array: Array, dtype: ir.DataType, name: str) -> onnx.TensorProto:
    if dtype == ir.DataType.STRING:
        proto = onnx.TensorProto(name=name, data_type=dtype.value, dims=array.shape)
        proto.string_data.extend(
            s if isinstance(s, bytes) else str(s).encode() for s in array.reshape(-1)
        )
        return proto
    return ir.serde.serialize_tensor(ir.Tensor(array, dtype=dtype, name=name))


def _to_ort(array: Array, dtype: ir.DataType) -> Any:
    import onnxruntime as ort

    if array.dtype.kind not in "V" and array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    raw = array.view(np.dtype(f"u{array.itemsize}"))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, dtype.value)


def _digest(value: Any) -> bytes:
    dtype = _dtype_of(value)
    if dtype == ir.DataType.STRING:
        return repr(value.numpy().tolist()).encode()
    return hashlib.blake2b(_raw(value).data).digest()


def _dtype_of(value: Any) -> ir.DataType:
    if not value.is_tensor():
        raise EvaluationError("its result is not a tensor")
    return ir.DataType(value.element_type())


def _raw(value: Any) -> Array:
    """The bytes of onnxruntime's tensor, where they are."""
    nbytes = value.tensor_size_in_bytes()
    if nbytes == 0:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_ubyte * nbytes).from_address(value.data_ptr())
    # the ctypes object is the array's base: as long as a view lives, so does onnxruntime's tensor
    memory.owner = value
    return np.frombuffer(memory, np.uint8)


def _from_ort(value: Any) -> Array:
    dtype = _dtype_of(value)
    if dtype == ir.DataType.STRING:
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    raw = _raw(value)
    if not raw.size:
        return np.empty(shape, dtype.numpy())
    if dtype.bitwidth < 8:
        return np.asarray(ir.PackedTensor(raw, dtype, shape=ir.Shape(shape)).numpy())
    return raw.view(dtype.numpy()).reshape(shape)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    marker = text.rfind("] : ")
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    elif marker >= 0:
        text = text[marker + 4 :]
    return text[:300] or type(error).__name__
