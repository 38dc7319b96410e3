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

from onnxfold.kernels.engines.assembly import assemble
from onnxfold.kernels.operation import Operation, Output
from onnxfold.pool.buffer import Array

# A constant loop that runs longer than this is left to the model.
_TIME_LIMIT_SECONDS = 120.0

# Bytes of a SIMD register in the code that is not chosen by processor (Eigen's).
_ALIGNMENT = 16

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
    assembly = assemble(operations, wanted, functions, ir_version)
    model, outputs = assembly.model, assembly.outputs
    try:
        values = {
            name: _to_ort(_aligned(buffer.array()).reshape(buffer.shape), buffer.dtype)
            for name, buffer in assembly.feeds.items()
        }
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
