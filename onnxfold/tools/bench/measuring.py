"""Measure runs, the creation of sessions, and the ops that onnxruntime runs for a model.

Measurements of several models are interleaved, so that disturbances affect all models equally.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.ir import storage
from onnxfold.ir.graphs import count_nodes
from onnxfold.support import files, isolated
from onnxfold.support.errors import ModelError, OnnxFoldError
from onnxfold.support.onnxruntime_sessions import (
    message_of,
    open_session,
    register_custom_ops,
    session_options,
    write_optimized,
)
from onnxfold.support.system import peak_rss_bytes, rss_bytes

if TYPE_CHECKING:
    import onnxruntime

Runner = Callable[[], Any]

_OPENING_TIMEOUT = 1800  # seconds for creating a session
_TRIALS = 3  # runs that determine the number of repetitions in a measurement
_MIN_SECONDS = 0.01  # of a measurement; shorter runs are repeated
_CLOCK_SECONDS = 1e-6  # assumed minimum time of a run, which limits the number of repetitions


@dataclass(frozen=True)
class Spread:
    """The median and the minimum of several measurements."""

    median: float
    least: float


def spread(measured: Iterable[float]) -> Spread:
    """Return the median and the minimum of at least one measurement."""
    measured = list(measured)
    return Spread(statistics.median(measured), min(measured))


def quartiles(measured: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile of at least one measurement."""
    low, high = np.quantile(measured, [0.25, 0.75])
    return float(low), float(high)


def exceeds_spread(ratio: float, quartiles: tuple[float, float]) -> bool:
    """Return whether the distance of a median ratio from 1 exceeds the interquartile range."""
    low, high = quartiles
    return abs(ratio - 1) > high - low


@dataclass(frozen=True)
class Benched:
    """A model or bundle to measure.

    Attributes:
        path: The path of the model or bundle.
        arguments: Arguments of `onnxfold.Session`, which opens the model or bundle. None for a
            session of onnxruntime.
        custom_ops: Paths of shared libraries with custom ops.
    """

    path: str
    arguments: dict[str, Any] | None = None
    custom_ops: Sequence[str] = ()

    def open(self, options: onnxruntime.SessionOptions, providers: Sequence[str]) -> Any:
        """Open a session of onnxruntime, or an `onnxfold.Session` if there are arguments for it.

        Args:
            options: The session options, to which the libraries of custom ops are added.
            providers: Execution providers of onnxruntime.

        Raises:
            OnnxFoldError: The model, the bundle or a library is invalid.
        """
        register_custom_ops(options, self.custom_ops)
        try:
            if self.arguments is None:
                return open_session(self.path, options, providers)
            from onnxfold.runtime.sessions.session import Session

            return Session(self.path, options, providers, **self.arguments)
        except OnnxFoldError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base class
            if self.arguments is None:
                storage.load(self.path)  # its errors are more precise than onnxruntime's
            reason = f"onnxruntime cannot load the model: {message_of(error)}"
            raise ModelError(reason, file=self.path) from error


@dataclass(frozen=True)
class Opening:
    """The time and memory for creating a session in a new process.

    Attributes:
        cpu_seconds: User and system time.
        wall_seconds: Wall time.
        peak_bytes: Growth of the memory of the process up to its peak, in bytes (median).
    """

    cpu_seconds: Spread
    wall_seconds: Spread
    peak_bytes: int


def optimized_ops(benched: Benched, providers: Sequence[str]) -> dict[str, int]:
    """Return the number of nodes of each op after all optimizations of onnxruntime.

    The most frequent ops are first. Nodes of subgraphs are included, Constant nodes are not. The
    name of an op outside of ONNX's domain begins with the domain, as in ``com.microsoft::Gelu``.

    Raises:
        OnnxFoldError: The model, the bundle or a library is invalid.
    """
    with files.scratch_folder("bench") as folder:
        path = f"{folder}/optimized.onnx"
        options = session_options(threads=1)
        option = "optimized_model_external_initializers_min_size_in_bytes"
        write_optimized(options, path, **{option: "1024"})
        benched.open(options, providers)
        counts = count_nodes(storage.load(path))
    counts.pop("Constant", None)
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def opening(models: Sequence[Benched], providers: Sequence[str], rounds: int) -> list[Opening]:
    """Measure the creation of sessions for several models in interleaved rounds.

    Each session is created in a new process.

    Args:
        models: The models and bundles.
        providers: Execution providers of onnxruntime.
        rounds: The number of sessions of each model.

    Raises:
        ModelError: A session cannot be created, or its process ends or exceeds the time limit.
    """
    measured: list[list[dict[str, float]]] = [[] for _ in models]
    for round_index in range(rounds):
        order = range(len(models))
        for k in order if round_index % 2 else reversed(order):
            request = {**asdict(models[k]), "providers": list(providers)}
            function = f"{__name__}:open_model"
            try:
                answer, _ = isolated.run(function, request, seconds=_OPENING_TIMEOUT)
            except isolated.Failure as failure:
                raise ModelError(str(failure), file=models[k].path) from failure
            measured[k].append(answer)
    return [
        Opening(
            cpu_seconds=spread(each["cpu"] for each in figures),
            wall_seconds=spread(each["wall"] for each in figures),
            peak_bytes=round(spread(each["bytes"] for each in figures).median),
        )
        for figures in measured
    ]


def open_model(request: dict[str, Any], arrays: object) -> tuple[dict[str, float], list[Any]]:
    """Create a session in this process, which `isolated` has started.

    Args:
        request: The fields of a `Benched`, and "providers".
        arrays: Not used.

    Returns:
        Seconds of "cpu" and "wall" time, and "bytes" by which the memory grew up to its peak. The
        second element is empty.

    Raises:
        OnnxFoldError: The model, the bundle or a library is invalid.
    """
    options = session_options(threads=1)
    providers = request.pop("providers")
    before = rss_bytes()
    cpu = time.process_time()
    wall = time.perf_counter()
    try:
        session = Benched(**request).open(options, providers)
    except OnnxFoldError as error:
        error.file = None  # the caller adds the file
        raise
    figures = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "bytes": peak_rss_bytes() - before,
    }
    del session
    return figures, []


@dataclass(frozen=True)
class RunTime:
    """Seconds of a run: wall time, and CPU time of all threads."""

    wall: float
    cpu: float


def interleaved(
    runs: Sequence[Runner], rounds: int, has_next: Callable[[int], bool] = lambda index: True
) -> list[list[RunTime]]:
    """Measure several functions in interleaved rounds, after trial runs that are not measured.

    The order in a round is random. Every other round has the reverse order of the round before, so
    that no function follows itself more often than the others. A short function runs several times
    in a round.

    Args:
        runs: The functions.
        rounds: The maximum number of rounds.
        has_next: Called with the index of a round. The measurement ends if it returns False.

    Returns:
        For each function, the mean time of a run in each round.
    """
    measured: list[list[RunTime]] = [[] for _ in runs]
    repetitions = []
    for run in runs:
        fastest = min(timeit.repeat(run, repeat=_TRIALS, number=1))  # a trial may be slow by chance
        repetitions.append(max(1, int(_MIN_SECONDS / max(fastest, _CLOCK_SECONDS))))
    order = list(range(len(runs)))
    rng = random.Random(0)
    for index in itertools.takewhile(has_next, range(rounds)):
        order.reverse()
        if index % 2 == 0:
            rng.shuffle(order)
        for k in order:
            if repetitions[k] > 1:
                runs[k]()  # replace the data of another model in the CPU caches
            cpu = time.process_time()
            wall = time.perf_counter()
            for _ in range(repetitions[k]):
                runs[k]()
            cpu = time.process_time() - cpu
            wall = time.perf_counter() - wall
            measured[k].append(RunTime(wall / repetitions[k], cpu / repetitions[k]))
    return measured


@dataclass(frozen=True)
class OpTime:
    """The calls of an op in a run and their total time in seconds, as medians over several runs."""

    op: str
    calls: float
    seconds: float
