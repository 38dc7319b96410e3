"""Run a model on onnxruntime to compute constants.

onnxruntime can crash, run without end, and ask for any amount of memory, and a few bytes of an
untrusted model can make it do so. Only what is certain to be quick and small runs in this process
(:mod:`onnxfold.fold.engines`); everything else runs in another (`evaluate_isolated`).
This module imports nothing large, so that such a process starts quickly.
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
from onnxfold.support.system import CPU_LIMIT_CODE

Array = npt.NDArray[Any]

_MORE_THREADS = 3  # must find what one finds; odd, so that the work is divided at other places
_ALIGNMENT = 16  # bytes of a SIMD register in the code that is not chosen by processor (Eigen's)
# Wall time of an evaluation: for starting Python and onnxruntime, and so many times the CPU time
# (on a busy machine a process gets its share of the processors only).
_START_SECONDS = 20.0
_PATIENCE = 2
_START_COST = 0.1  # CPU seconds that starting the next process counts for after a failure
_LEAST_SECONDS = 3.0  # what real models evaluate takes milliseconds; the rest is stopped soon
_BYTES_PER_SECOND = 16 << 20  # of a model, whose own weights may be worked on for longer
_WORKED_PER_SECOND = 256 << 20  # bytes that NumPy goes through in a second at least
_LEAST_USEFUL = 0.2  # seconds; with less time left nothing is started any more
_UNLIMITED = 1e6  # CPU seconds


class EvaluationError(Exception):
    """onnxruntime cannot run the model; the message says why in one line."""


class TimeLimit:
    """CPU seconds that all evaluations of one run may take together, and how many are left. Wall
    time does not count: what is folded should not depend on what else a machine has to do.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.left = seconds

    def share(self) -> float:
        """Return the seconds that the next evaluation may take: half of those left, or 0."""
        return self.left / 2 if self.left > _LEAST_USEFUL else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes that can be gone through in that time."""
        return int(self.share() * _WORKED_PER_SECOND)

    @property
    def reason(self) -> str:
        """Why nothing more is evaluated."""
        return f"the {self.seconds:.1f} s for evaluating constants of this model are used up"

    def lift(self) -> None:
        """End the limit: what is still to be computed is in the model already, and not large."""
        self.left = _UNLIMITED

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of this thread, and of those that work for it, in the context."""
        began = cpu_time()
        try:
            yield
        finally:
            self.left -= cpu_time() - began


def time_for(nbytes: int) -> TimeLimit:
    """Return the time limit of a model that takes so many bytes."""
    return TimeLimit(_LEAST_SECONDS + nbytes / _BYTES_PER_SECOND)


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
        feeds: The inputs by name; neither strings nor numbers of less than a byte.
        outputs: The names of the outputs.
        exact: Whether results that depend on the number of threads are an error.
        limit: The time limit of the run. The evaluation may use its share; its CPU time is
            subtracted.
        memory: Maximum private memory of the process, in bytes.
        processes: The group that provides the process.
        libraries: Paths of shared libraries with custom ops.

    Raises:
        EvaluationError: The model exceeded a limit, crashed the process, or failed.
    """
    request = [list(feeds), list(outputs), exact, memory, list(libraries)]
    arrays = [np.frombuffer(model, np.uint8), *feeds.values()]
    seconds = limit.share()
    began = time.monotonic()
    spent = None
    try:
        (spent, told), made = isolated.run(
            f"{__name__}:serve",
            request,
            arrays,
            seconds=_START_SECONDS + _PATIENCE * seconds,
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
            how = str(failure).removeprefix("the process ended with ")
            reason = f"onnxruntime crashed on it ({how})"
        else:
            reason = f"no process computes it: {failure}"
        raise EvaluationError(reason) from failure
    finally:
        took = min(seconds, time.monotonic() - began) + _START_COST
        limit.left -= took if spent is None else spent
    if isinstance(told, str):
        raise EvaluationError(told)
    return [
        array if texts is None else np.array([*texts, None], object)[:-1].reshape(array.shape)
        for texts, array in zip(told, made, strict=True)
    ]


def serve(request: Sequence[Any], arrays: Sequence[Array]) -> tuple[Any, list[Array]]:
    """Run a model in this process, see `evaluate_isolated`; the CPU time, and what came of it."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    began = time.process_time()
    names, outputs, exact, memory, libraries = request
    model = arrays[0].tobytes()
    feeds = dict(zip(names, arrays[1:], strict=True))
    try:
        opened = functools.partial(open_model, libraries=libraries)
        results = onnxruntime(model, feeds, outputs, exact=exact, opened=opened)
    except EvaluationError as error:
        if isinstance(error.__cause__, MemoryError) or "alloc" in str(error):
            raise MemoryError from error
        return [time.process_time() - began, str(error)], []
    if sum(array.nbytes for array in results) > memory:
        raise MemoryError
    told: list[list[str] | None] = [None] * len(results)
    for k, array in enumerate(results):
        if array.dtype.hasobject:
            told[k] = [s.decode() if isinstance(s, bytes) else str(s) for s in array.flat]
            results[k] = np.empty(array.shape, bool)
    return [time.process_time() - began, told], results


def open_model(model: bytes, threads: int, libraries: Sequence[str] = ()) -> Any:
    """Return a session that runs a model node by node, with libraries of custom ops."""
    options = session_options(threads=threads, node_by_node=True)
    register_custom_ops(options, libraries)
    return open_session(model, options)


def onnxruntime(
    model: bytes,
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    *,
    exact: bool,
    opened: Callable[[bytes, int], Any] = open_model,
) -> list[Array]:
    """Run a model on onnxruntime, node by node. The results are in its own memory: no copy.

    With ``exact`` everything is computed twice, by one thread and by several: some sums (a matrix
    times a single column) are added up in another order then, and the model may run with any
    number. An `EvaluationError` says that there is no kernel, that it refuses the operands, or that
    the two differ.
    """
    try:
        # An array of a file may begin at any byte; sums in SIMD registers begin at a multiple of
        # theirs: elsewhere they would be added up in another order. A copy begins at one.
        begins = {name: array.__array_interface__["data"][0] for name, array in feeds.items()}
        values = {
            name: ort_value(array.copy() if begins[name] % _ALIGNMENT else array)
            for name, array in feeds.items()
        }
        # of the first only the digests are kept, so that memory holds one set of results
        digests = None
        if exact:
            began = cpu_time()
            computed = opened(model, _MORE_THREADS).run_with_ort_values(outputs, values)
            several = cpu_time() - began
            digests = [_digest(array_of(value)) for value in computed]
            del computed
        began = cpu_time()
        computed = opened(model, 1).run_with_ort_values(outputs, values)
        results = [array_of(value) for value in computed]
        if exact:  # onnxruntime's threads have done as much together as one does alone
            add_helpers(max(0.0, cpu_time() - began - several))
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise EvaluationError(message_of(error)) from error
    if digests is not None and digests != [_digest(array) for array in results]:
        # no value is the right one
        raise EvaluationError("onnxruntime's result depends on how many threads it has")
    return results


def _digest(array: Array) -> bytes:
    if array.dtype.hasobject:
        return repr(array.tolist()).encode()
    return hashlib.blake2b(array.reshape(-1).view(np.uint8).data).digest()
