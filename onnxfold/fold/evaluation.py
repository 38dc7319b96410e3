"""The evaluation of models on onnxruntime to compute constants.

An untrusted model of a few bytes can make onnxruntime crash, run without end, or allocate any
amount of memory. Only operations that are certain to be fast and small run in this process
(:mod:`onnxfold.fold.engines`). All other operations run in a child process (`evaluate_isolated`).
This module imports only small modules, so that a child process starts quickly.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.support import isolated
from onnxfold.support.onnxruntime_sessions import (
    array_of,
    message_of,
    open_session,
    ort_value,
    register_custom_ops,
    session_options,
)
from onnxfold.support.parallel import add_helpers, cpu_time
from onnxfold.support.system import CPU_LIMIT_CODE, exit_description

Array = npt.NDArray[Any]

# Number of threads of the run that is compared with a run of one thread. The number is odd, so that
# onnxruntime divides the work at other positions than with an even number of threads.
_SEVERAL_THREADS = 3
# Bytes of the SIMD register that Eigen's baseline code uses.
_ALIGNMENT = 16
# Seconds of wall time that a child process may take to start Python and onnxruntime.
_START_SECONDS = 20.0
# Allowed ratio of wall time to CPU time: other processes may use the processors, too.
_WALL_TIME_RATIO = 2
# CPU seconds added for a failed child process, because the next evaluation starts another process.
_START_COST = 0.1
# Time limit of the smallest model, in CPU seconds. Constants of real models take milliseconds.
_MIN_SECONDS = 3.0
# The time limit grows by one CPU second for this many bytes, because constants that depend on large
# weights take longer.
_MODEL_BYTES_PER_SECOND = 16 << 20
# Lower bound for the bytes that NumPy processes in a second.
_NUMPY_BYTES_PER_SECOND = 256 << 20
# No evaluation starts with fewer remaining CPU seconds.
_MIN_SHARE_SECONDS = 0.2
_UNLIMITED = 1e6  # CPU seconds


class EvaluationError(Exception):
    """An error of onnxruntime when it runs a model; the message is one line."""


class TimeLimit:
    """The limit of the CPU time that all evaluations of a run take together, in seconds.

    Wall time does not count, because the set of folded constants should not depend on other
    processes of the machine. ``remaining`` is the remaining CPU time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.remaining = seconds

    def share(self) -> float:
        """Return the CPU seconds for the next evaluation: half of the remaining ones, or 0."""
        return self.remaining / 2 if self.remaining > _MIN_SHARE_SECONDS else 0.0

    @property
    def nbytes(self) -> int:
        """The number of bytes that NumPy can process in the time of the next evaluation."""
        return int(self.share() * _NUMPY_BYTES_PER_SECOND)

    @property
    def reason(self) -> str:
        """The reason for not evaluating further constants."""
        return f"the {self.seconds:.1f} s for evaluating constants of this model are used up"

    def lift(self) -> None:
        """Remove the limit after the last pass.

        Later evaluations compute only deferred results that the model already contains.
        """
        self.remaining = _UNLIMITED

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Subtract the CPU time that this thread and its helper threads spend in the context."""
        start = cpu_time()
        try:
            yield
        finally:
            self.remaining -= cpu_time() - start


def time_for(nbytes: int) -> TimeLimit:
    """Return the limit of the CPU time for a model with ``nbytes`` bytes."""
    return TimeLimit(_MIN_SECONDS + nbytes / _MODEL_BYTES_PER_SECOND)


def evaluate_isolated(
    model: bytes,
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    *,
    exact: bool,
    limit: TimeLimit,
    memory: int,
    processes: isolated.Processes,
    libraries: Sequence[str] = (),
) -> list[Array]:
    """Run a serialized model in another process and return its outputs.

    Args:
        model: The serialized model.
        feeds: The inputs by name, without strings and elements narrower than a byte.
        outputs: The names of the outputs.
        exact: Whether to raise an error for results that depend on the number of threads.
        limit: The time limit of the run. The evaluation may take `TimeLimit.share` CPU seconds. The
            CPU time that it takes is subtracted from the limit.
        memory: Maximum private memory of the process, in bytes.
        processes: The set of child processes that provides the process.
        libraries: Paths of shared libraries with custom ops.

    Raises:
        EvaluationError: The model exceeded a limit, crashed the process, or failed.
    """
    request = [list(feeds), list(outputs), exact, memory, list(libraries)]
    arrays = [np.frombuffer(model, np.uint8), *feeds.values()]
    seconds = limit.share()
    start = time.monotonic()
    spent = None
    try:
        (spent, answer), results = isolated.run(
            f"{__name__}:serve",
            request,
            arrays,
            seconds=_START_SECONDS + _WALL_TIME_RATIO * seconds,
            cpu_seconds=seconds,
            memory=memory,
            keep=True,
            processes=processes,
        )
    except isolated.Failure as failure:
        if failure.kind == "MemoryError":
            reason = f"computing it takes more than {memory:,} bytes of memory"
        elif failure.kind == "late" or failure.code == CPU_LIMIT_CODE:
            reason = f"computing it takes longer than {seconds:.1f} s"
        elif failure.kind == "ended":
            reason = f"onnxruntime crashed with {exit_description(failure.code)}"
        else:
            reason = f"the child process failed: {failure}"
        raise EvaluationError(reason) from failure
    finally:
        if spent is None:
            spent = min(seconds, time.monotonic() - start) + _START_COST
        limit.remaining -= spent
    if isinstance(answer, str):
        raise EvaluationError(answer)
    return [
        array if strings is None else _string_array(strings, array.shape)
        for strings, array in zip(answer, results, strict=True)
    ]


def _string_array(strings: Sequence[str], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(strings), object)
    array[:] = strings
    return array.reshape(shape)


def serve(request: Sequence[Any], arrays: Sequence[Array]) -> tuple[Any, list[Array]]:
    """Run a model in this process. `evaluate_isolated` calls this function in a child process.

    Args:
        request: The names of the inputs and of the outputs, ``exact``, ``memory`` and
            ``libraries``.
        arrays: The bytes of the model, and the inputs.

    Returns:
        An answer and the results. The answer is a list. Its first element is the CPU time in
        seconds. The second element is the message of an error, or a list. This list has the
        elements of each string result, and None for each numeric result. Only the shapes of the
        string results are valid in the returned arrays.

    Raises:
        MemoryError: onnxruntime cannot allocate memory, or the results exceed ``memory``.
    """
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    start = time.process_time()
    names, outputs, exact, memory, libraries = request
    model = arrays[0].tobytes()
    feeds = dict(zip(names, arrays[1:], strict=True))
    try:
        create_session = functools.partial(open_model, libraries=libraries)
        results = onnxruntime(model, feeds, outputs, exact=exact, create_session=create_session)
    except EvaluationError as error:
        if isinstance(error.__cause__, MemoryError) or "alloc" in str(error):
            raise MemoryError from error
        return [time.process_time() - start, str(error)], []
    if sum(array.nbytes for array in results) > memory:
        raise MemoryError
    strings: list[list[str] | None] = [None] * len(results)
    for k, array in enumerate(results):
        if array.dtype.hasobject:
            strings[k] = [s.decode() if isinstance(s, bytes) else str(s) for s in array.flat]
            results[k] = np.empty(array.shape, bool)  # transfers the shape only
    return [time.process_time() - start, strings], results


def open_model(model: bytes, threads: int, libraries: Sequence[str] = ()) -> Any:
    """Return a session that runs a serialized model node by node with libraries of custom ops."""
    options = session_options(threads=threads, node_by_node=True)
    register_custom_ops(options, libraries)
    return open_session(model, options)


def onnxruntime(
    model: bytes,
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    *,
    exact: bool,
    create_session: Callable[[bytes, int], Any] = open_model,
) -> list[Array]:
    """Run a model on onnxruntime, node by node, and return views of onnxruntime's results.

    With ``exact``, the model runs twice: with one thread and with several threads. With several
    threads, onnxruntime adds up some sums in another order, for example in the product of a matrix
    and a single column. The optimized model may run with any number of threads.

    Raises:
        EvaluationError: onnxruntime cannot load or run the model, or the results of the two runs
            differ.
    """
    try:
        inputs = {name: ort_value(_aligned(array)) for name, array in feeds.items()}
        # only the digests of the first results are kept, so that memory holds one set of results
        digests = None
        if exact:
            start = cpu_time()
            computed = create_session(model, _SEVERAL_THREADS).run_with_ort_values(outputs, inputs)
            threaded_seconds = cpu_time() - start
            digests = [_digest(array_of(value)) for value in computed]
            del computed
        start = cpu_time()
        computed = create_session(model, 1).run_with_ort_values(outputs, inputs)
        results = [array_of(value) for value in computed]
        # the threads of the first run are assumed to take as much CPU time as this single thread
        if exact:
            add_helpers(max(0.0, cpu_time() - start - threaded_seconds))
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise EvaluationError(message_of(error)) from error
    if digests is not None and digests != [_digest(array) for array in results]:
        raise EvaluationError("onnxruntime's result depends on the number of its threads")
    return results


def _aligned(array: Array) -> Array:
    """Return an array whose address is a multiple of the size of a SIMD register.

    At other addresses, SIMD code adds up sums in another order. An array in a file may begin at any
    byte. Such an array is copied, because copies are aligned.
    """
    address = array.__array_interface__["data"][0]
    return array.copy() if address % _ALIGNMENT else array


def _digest(array: Array) -> bytes:
    if array.dtype.hasobject:
        return repr(array.tolist()).encode()
    return hashlib.blake2b(array.reshape(-1).view(np.uint8).data).digest()
