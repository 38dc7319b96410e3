"""Measure the ops onnxruntime runs for a model, session creation, and runs.

Measurements are interleaved, so that a disturbance of the machine affects all models alike.
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

_LONGEST = 1800  # seconds that creating a session may take
_TRIALS = 3  # runs by which their number in a measurement is chosen
_LEAST = 0.01  # seconds of one measurement; shorter runs are repeated within it


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
    """Return whether the median of ratios is further from 1 than their quartiles are apart."""
    low, high = quartiles
    return abs(ratio - 1) > high - low


@dataclass(frozen=True)
class Benched:
    """A model or bundle that is run as it is, or with ``arguments`` for `onnxfold.Session`."""

    path: str
    arguments: dict[str, Any] | None = None
    custom_ops: Sequence[str] = ()

    def open(self, options: onnxruntime.SessionOptions, providers: Sequence[str]) -> Any:
        """Open a session; an OnnxFoldError says that a model, a bundle or a library is invalid."""
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
                storage.load(self.path)  # its errors say what is missing or damaged
            reason = f"onnxruntime does not take it: {message_of(error)}"
            raise ModelError(reason, file=self.path) from error


@dataclass(frozen=True)
class Opening:
    """Time and memory of creating a session, each time in a new process: user and system time, wall
    time, and the median of the bytes by which the memory of the process grows until its peak.
    """

    cpu_seconds: Spread
    wall_seconds: Spread
    peak_bytes: int


def optimized_ops(benched: Benched, providers: Sequence[str]) -> dict[str, int]:
    """Return the number of nodes of each op after all optimizations of onnxruntime. Nodes of
    subgraphs are counted, constants are not. An op of another domain has it before its name:
    ``com.microsoft::Gelu``.
    """
    with files.scratch_folder("bench") as folder:
        path = f"{folder}/optimized.onnx"
        name = "external_initializers_min_size_in_bytes"
        options = session_options(threads=1)
        write_optimized(options, path, **{f"optimized_model_{name}": "1024"})
        benched.open(options, providers)
        counts = count_nodes(storage.load(path))
    counts.pop("Constant", None)
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def opening(models: Sequence[Benched], providers: Sequence[str], rounds: int) -> list[Opening]:
    """Return what creating a session takes for each of several models, interleaved; raise a
    ModelError if onnxruntime does not take a model, or ends.
    """
    took: list[list[dict[str, float]]] = [[] for _ in models]
    for turn in range(rounds):
        for k in range(len(models)) if turn % 2 else reversed(range(len(models))):
            request = {**asdict(models[k]), "providers": list(providers)}
            try:
                answer, _ = isolated.run(f"{__name__}:open_model", request, seconds=_LONGEST)
            except isolated.Failure as failure:
                raise ModelError(str(failure), file=models[k].path) from failure
            took[k].append(answer)
    return [
        Opening(
            spread(taken["cpu"] for taken in each),
            spread(taken["wall"] for taken in each),
            round(spread(taken["bytes"] for taken in each).median),
        )
        for each in took
    ]


def open_model(request: dict[str, Any], arrays: object) -> tuple[dict[str, float], list[Any]]:
    """Create a session in this process, which `isolated` has started for it; return seconds of
    "cpu" and "wall" time, and "bytes" by which the memory of the process grew at its peak. The
    request has the fields of a `Benched`, and "providers".
    """
    options = session_options(threads=1)
    providers = request.pop("providers")
    before = rss_bytes()
    cpu = time.process_time()
    wall = time.perf_counter()
    try:
        session = Benched(**request).open(options, providers)
    except OnnxFoldError as error:
        error.file = None  # the caller names it
        raise
    taken = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "bytes": peak_rss_bytes() - before,
    }
    del session
    return taken, []


@dataclass(frozen=True)
class Taken:
    """Seconds of a run: of wall time, and of CPU time of all threads."""

    wall: float
    cpu: float


def interleaved(
    runs: Sequence[Runner], rounds: int, going: Callable[[int], bool] = lambda turn: True
) -> list[list[Taken]]:
    """Return what a run of each takes in each round, up to a number of rounds, or as long as
    ``going`` returns true for the number of the next one; each has run before. The order is random,
    and reversed in every other round, so that none follows itself more often.
    """
    took: list[list[Taken]] = [[] for _ in runs]
    times = []
    for run in runs:  # one trial may be slow by chance
        least = min(timeit.repeat(run, repeat=_TRIALS, number=1))
        times.append(max(1, int(_LEAST / max(least, 1e-6))))
    order = list(range(len(runs)))
    shuffled = random.Random(0)
    for turn in itertools.takewhile(going, range(rounds)):
        order.reverse()
        if turn % 2 == 0:
            shuffled.shuffle(order)
        for k in order:
            if times[k] > 1:
                runs[k]()  # the caches hold another model
            cpu = time.process_time()
            wall = time.perf_counter()
            for _ in range(times[k]):
                runs[k]()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            took[k].append(Taken(wall / times[k], cpu / times[k]))
    return took


@dataclass(frozen=True)
class OpTime:
    """An op: how many of its kernels a run calls, and their seconds in it, medians of runs."""

    op: str
    calls: float
    seconds: float
