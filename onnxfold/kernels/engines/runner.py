"""Runs a model on onnxruntime or on onnx's reference evaluator: here, or as a process of its own.

Both engines can crash, run without end, and ask for any amount of memory, and what makes them do so
can be a few bytes of a model that somebody else wrote. So only what is certain to be quick and
small runs in the process of the optimizer (:mod:`onnxfold.kernels.engines.certain`). Everything
else runs in a child: this file as a script (:mod:`onnxfold.kernels.engines.child` starts it). That
is why nothing of this package is imported here.

A request comes as a line of JSON over a socket, with open files that hold the model and the
tensors. So does the answer. The child bounds its memory and time itself, and ends with its parent.
Other systems than Linux have no files in memory to pass: there the content of one file follows the
line, and who has asked looks how much memory and time it takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import math
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# A session with so many threads must find what one thread finds. Odd, so that the work is not
# divided where powers of two would be.
_MORE_THREADS = 3
# Bytes of a SIMD register in the code that is not chosen by processor (Eigen's).
_ALIGNMENT = 16
_STRING = 8  # onnx.TensorProto.STRING
# Bytes of a child besides what a request may take: stacks of threads, the evaluator's modules.
SLACK = 128 << 20
_PIECE = 1 << 20
# A child that nobody asks for so many seconds ends.
IDLE_SECONDS = 60
PASSES_FILES = hasattr(os, "memfd_create")
"""Whether messages carry open files; otherwise they carry the content of one."""
MOST_FILES = 64 if PASSES_FILES else 1
"""How many files one message can carry."""
TOKEN = "ONNXFOLD_TOKEN"
"""Environment variable: what a child says first when it had to be told where to call."""


class EvaluationError(Exception):
    """The engine cannot run the operations; the message says why in one line.

    Args:
        message: The reason.
        is_final: Whether there is no use in asking another engine: it would take too much time or
            memory, or the operands are such that the model itself fails on them.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Raw(NamedTuple):
    """A tensor as engines take and give it."""

    dtype: int
    """As in ``onnx.TensorProto``."""
    shape: tuple[int, ...]
    data: Array
    """Its bytes as stored (uint8), or the strings (object: str or bytes), flat."""


def onnxruntime(
    model: bytes, feeds: Mapping[str, Raw], outputs: Sequence[str], *, exact: bool
) -> list[Raw]:
    """Run a model on onnxruntime, node by node. The results are in its own memory: no copy.

    With ``exact`` everything is computed twice, by one thread and by several: some sums (a matrix
    times a single column) are added up in another order then, and the model may run with any
    number.

    Raises:
        EvaluationError: it has no kernel; or finally, the two differ, or it refuses the operands.
    """
    try:
        values = {name: _to_ort(raw) for name, raw in feeds.items()}
        # of the first only the digests are kept, so that memory holds one set of results
        digests = None
        if exact:
            computed = _run(session_of(model, threads=_MORE_THREADS), outputs, values)
            digests = [_digest(value) for value in computed]
        results = _run(session_of(model, threads=1), outputs, values)
        if digests is not None and digests != [_digest(value) for value in results]:
            # no value is the right one
            reason = "onnxruntime's result depends on how many threads it has"
            raise EvaluationError(reason, is_final=True)
        return [_from_ort(result) for result in results]
    except EvaluationError:
        raise
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise EvaluationError(_one_line(error)) from error


def _run(session: Any, outputs: Sequence[str], values: Mapping[str, Any]) -> Any:
    try:
        return session.run_with_ort_values(outputs, values)
    except Exception as error:  # see `onnxruntime`
        if type(error).__name__ == "InvalidArgument":
            raise EvaluationError(_one_line(error), is_final=True) from error
        raise


def session_of(model: bytes, *, threads: int = 0) -> Any:
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
    # threads that wait for more work would take as much of the processor as those that have some
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def reference(model: bytes, feeds: Mapping[str, Raw], outputs: Sequence[str]) -> list[Raw]:
    """Run a model on onnx's reference evaluator.

    Raises:
        EvaluationError: it cannot compute it, or gives something that is not a tensor.
    """
    import onnx.helper
    from onnx.reference import ReferenceEvaluator

    try:
        arrays = {
            name: raw.data.view(onnx.helper.tensor_dtype_to_np_dtype(raw.dtype)).reshape(raw.shape)
            for name, raw in feeds.items()
        }
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(onnx.load_model_from_string(model))
            computed = evaluator.run(list(outputs), arrays)
        results = []
        for value in computed:
            if not isinstance(value, np.ndarray | np.generic):
                raise EvaluationError("the result is not a tensor")
            results.append(_from_numpy(np.asarray(value)))
        return results
    except Exception as error:  # any class: it is plain Python over NumPy
        text = " ".join(str(error).split())[:200]
        raise EvaluationError(f"reference evaluator: {type(error).__name__}: {text}") from error


def _from_numpy(array: Array) -> Raw:
    import onnx.helper

    if array.dtype.kind in "UO":
        return Raw(_STRING, array.shape, array.astype(object).reshape(-1))
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == 1:
        packed = onnx.numpy_helper.from_array(array)  # may be packed, two or four in a byte
        return Raw(dtype, array.shape, np.frombuffer(packed.raw_data, np.uint8))
    return Raw(dtype, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _to_ort(raw: Raw) -> Any:
    import onnxruntime as ort

    data = _aligned(raw.data)
    array = data.view(f"u{data.nbytes // math.prod(raw.shape)}").reshape(raw.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, raw.dtype)


def _aligned(data: Array) -> Array:
    """The bytes at an address where onnxruntime would have put them.

    In a file they may begin at any byte, and sums in SIMD registers begin at a multiple of theirs:
    elsewhere they would be added up in another order.
    """
    if data.__array_interface__["data"][0] % _ALIGNMENT == 0:
        return data
    room = np.empty(data.nbytes + _ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % _ALIGNMENT
    copy = room[start : start + data.nbytes]
    np.copyto(copy, data)
    return copy


def _digest(value: Any) -> bytes:
    if _dtype_of(value) == _STRING:
        return repr(value.numpy().tolist()).encode()
    return hashlib.blake2b(_bytes_of(value).data).digest()


def _dtype_of(value: Any) -> int:
    if not value.is_tensor():
        raise EvaluationError("its result is not a tensor")
    return int(value.element_type())


def _bytes_of(value: Any) -> Array:
    """The bytes of onnxruntime's tensor, where they are."""
    nbytes = value.tensor_size_in_bytes()
    if nbytes == 0:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_ubyte * nbytes).from_address(value.data_ptr())
    # the ctypes object is the array's base: as long as a view lives, so does onnxruntime's tensor
    memory.owner = value
    return np.frombuffer(memory, np.uint8)


def _from_ort(value: Any) -> Raw:
    dtype, shape = _dtype_of(value), tuple(value.shape())
    if dtype == _STRING:
        return Raw(dtype, shape, np.asarray(value.numpy(), object).reshape(-1))
    return Raw(dtype, shape, _bytes_of(value))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    marker = text.rfind("] : ")
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    elif marker >= 0:
        text = text[marker + 4 :]
    return text[:300] or type(error).__name__


# ---------------------------------------------------------------- messages


def send(connection: socket.socket, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
    """Send a message and open files. Raises OSError."""
    if not PASSES_FILES:
        content = [mapped(file, 0, os.fstat(file).st_size) for file in files]
        told = {**message, "sizes": [part.nbytes for part in content]}
        connection.sendall(json.dumps(told).encode() + b"\n")
        for part in content:
            connection.sendall(part.data)
        return
    line = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(connection, [line], list(files))
    if sent < len(line):
        connection.sendall(line[sent:])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for a message; the files are the caller's to close. Raises EOFError, OSError."""
    parts: list[bytes] = []
    files: list[int] = []
    while not parts or b"\n" not in parts[-1]:
        if PASSES_FILES:
            part, more, _, _ = socket.recv_fds(connection, 1 << 16, MOST_FILES)
            files += more
        else:
            part = connection.recv(1 << 16)
        if not part:
            for file in files:
                os.close(file)
            raise EOFError
        parts.append(part)
    line, _, rest = b"".join(parts).partition(b"\n")
    message: dict[str, Any] = json.loads(line)
    return message, files or [
        _received(connection, size, rest) for size in message.get("sizes", ())
    ]


def _received(connection: socket.socket, size: int, begin: bytes) -> int:
    """A file with as many bytes of a message. Raises EOFError, OSError."""
    file = room()
    try:
        write(file, begin, 0)
        done = len(begin)
        while done < size:
            part = connection.recv(min(_PIECE, size - done))
            if not part:
                raise EOFError
            write(file, part, done)
            done += len(part)
    except BaseException:
        os.close(file)
        raise
    return file


def room() -> int:
    """An open file without a name. Raises OSError."""
    if PASSES_FILES:
        return os.memfd_create("onnxfold")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def write(file: int, data: Any, offset: int) -> int:
    """Write bytes and return where the next tensor can be mapped. Raises OSError."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        os.lseek(file, offset + done, os.SEEK_SET)
        done += os.write(file, view[done : done + (64 << 20)])
    end = offset + len(view)
    return -(-end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def mapped(file: int, offset: int, nbytes: int) -> Array:
    """Bytes of a file, read-only, wherever in it they begin. Raises OSError."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    begin = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    pages = mmap.mmap(file, offset - begin + nbytes, access=mmap.ACCESS_READ, offset=begin)
    return np.frombuffer(pages, np.uint8, nbytes, offset - begin)


def write_results(results: Sequence[Raw]) -> tuple[list[Any], int]:
    """Put tensors into a file; what they are and where, and the file."""
    file = room()
    entries: list[Any] = []
    end = 0
    for raw in results:
        data: Any = raw.data
        lengths = None
        if raw.dtype == _STRING:
            texts = [s if isinstance(s, bytes) else str(s).encode() for s in data]
            lengths = [len(s) for s in texts]
            data = b"".join(texts)
        start, end = end, write(file, data, end)
        entries.append([raw.dtype, raw.shape, start, len(memoryview(data).cast("B")), lengths])
    return entries, file


def read_results(entries: Sequence[Any], file: int) -> list[Raw]:
    """The tensors that ``write_results`` has put into a file, which is mapped."""
    results = []
    for dtype, shape, start, nbytes, lengths in entries:
        data = mapped(file, start, nbytes)
        if lengths is not None:
            whole = io.BytesIO(data.tobytes())
            data = np.empty(len(lengths), object)
            data[:] = [whole.read(length) for length in lengths]
        results.append(Raw(dtype, tuple(shape), data))
    return results


# ---------------------------------------------------------------- the child


def serve(connection: socket.socket) -> None:
    """Answer requests until nobody is there any more, or the memory does not come back."""
    threading.Thread(target=_end_with_parent, args=(connection, os.getppid()), daemon=True).start()
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    own = _data_bytes() if PASSES_FILES else None
    send(connection, {"bounded": own is not None, "token": os.environ.pop(TOKEN, "")})
    while select.select([connection], [], [], IDLE_SECONDS)[0]:
        request, files = receive(connection)
        if own is not None:
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (own + SLACK + request["limit"], hard))
        # SIGPROF ends the process when it has had so much time of the processors
        _alarm(request["seconds"])
        began = time.process_time()
        answer, result = _answer(request, files)
        _alarm(0)
        answer["seconds"] = time.process_time() - began
        for file in files:
            os.close(file)
        answer["retire"] = own is not None and (_data_bytes() or 0) > own + SLACK
        send(connection, answer, result)
        for file in result:
            os.close(file)


def _alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _answer(request: dict[str, Any], files: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
    try:
        model = mapped(files[0], 0, request["model"]).tobytes()
        feeds = {
            name: Raw(dtype, tuple(shape), mapped(files[file], offset, nbytes))
            for name, dtype, shape, file, offset, nbytes in request["feeds"]
        }
        if request["engine"] == "reference":
            results = reference(model, feeds, request["outputs"])
        else:
            results = onnxruntime(model, feeds, request["outputs"], exact=request["exact"])
        if sum(raw.data.nbytes for raw in results) <= request["limit"]:
            entries, file = write_results(results)
            return {"results": entries}, [file]
    except EvaluationError as error:
        if not isinstance(error.__cause__, MemoryError) and "alloc" not in str(error):
            return {"error": str(error), "final": error.is_final}, []
    except MemoryError:
        pass  # as for results that are too large
    return {"error": too_much_memory(request["limit"]), "final": True}, []


def too_much_memory(limit: int) -> str:
    """Why something was not computed."""
    return f"computing it takes more than {limit:,} bytes of memory"


def _end_with_parent(connection: socket.socket, parent: int) -> None:
    """End this process at once, whatever it computes, when the other end of its socket is gone."""
    with contextlib.suppress(OSError):
        while os.getppid() == parent:
            if select.select([connection], [], [], 1)[0]:
                if not connection.recv(1, socket.MSG_PEEK):
                    break
                time.sleep(0.2)  # a request, which is about to be read
    os._exit(1)


def _data_bytes() -> int | None:
    """Bytes of private writable memory that this process has asked for; None off Linux."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError):
        place = int(sys.argv[1])
        if PASSES_FILES:
            serve(socket.socket(fileno=place))
        else:
            serve(socket.create_connection(("127.0.0.1", place)))
