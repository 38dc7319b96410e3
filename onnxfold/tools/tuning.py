"""Find the fastest options on this machine: optimize a model in several ways and measure each."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from onnxfold.api.optimize import optimize_file
from onnxfold.api.signatures import Positive, Progress, checked
from onnxfold.ir import storage
from onnxfold.ir.storage import PathLike
from onnxfold.ir.storage.save import real_target
from onnxfold.support import files
from onnxfold.support.errors import OnnxFoldError
from onnxfold.support.onnxruntime_sessions import CPU, session_options
from onnxfold.support.tables import Printable, Table, count_text, time_text
from onnxfold.tools.bench.measuring import Benched, exceeds_spread, quartiles
from onnxfold.tools.bench.side_by_side import timed_runs

ORIGINAL = "original"
_CANDIDATES: dict[str, dict[str, Any]] = {
    "-O1": {"level": 1},
    "-O1 --value-info": {"level": 1, "value_info": True},
    "-O2": {"level": 2},
    "-O2 --value-info": {"level": 2, "value_info": True},
    "-O2 --target onnxruntime": {"level": 2, "target": "onnxruntime"},
}
"""Options of `optimize_file` by their text on the command line, the most exact ones first."""

_MIN_ROUNDS = 9  # also the number of groups of rounds
_MAX_ROUNDS = 1000


@dataclass(frozen=True, repr=False)
class Tuning(Printable):
    """The candidates that were measured, and the candidate that was written.

    The name of a candidate is "original" or its options on the command line. Times are CPU time for
    one thread, and otherwise wall time.

    Attributes:
        seconds: Median seconds of a run, by candidate.
        speedup: Speed relative to the original, by candidate: the median of the medians of nine
            groups of neighbouring runs.
        quartiles: The first and third quartile of the medians of the groups, by candidate.
        failed: Reasons why candidates were not measured, by candidate.
        chosen: The candidate that was written.
        sizes: Sizes of dynamic dimensions in the measurement.
        threads: Threads of onnxruntime. 0 means all threads.
        rounds: Number of interleaved runs of each candidate.
    """

    seconds: dict[str, float]
    speedup: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    failed: dict[str, str]
    chosen: str
    sizes: dict[str, int]
    threads: int
    rounds: int

    def _text_parts(self) -> Iterator[str | Table]:
        rows = []
        for name, seconds in self.seconds.items():
            low, high = self.quartiles[name]
            speed = f"{self.speedup[name]:.2f}x"
            rows.append((name, time_text(seconds), speed, f"{low:.2f}-{high:.2f}x"))
        yield Table(("candidate", ">time", ">speed", ">spread"), rows)
        yield from (f"{name} was not measured: {reason}" for name, reason in self.failed.items())
        sizes = "".join(f", {name} = {size}" for name, size in self.sizes.items())
        threads = count_text(self.threads, "thread") if self.threads else "all threads"
        yield f"{self.rounds} interleaved runs of each, {threads}{sizes}"
        speed = f"{self.speedup[self.chosen]:.2f}x as fast as the original"
        yield f"written: {self.chosen}, {speed}; no other is faster by more than the spread"


@checked
def tune(
    source: PathLike,
    destination: PathLike,
    *,
    dims: Mapping[str, int] | None = None,
    threads: int = 0,
    seconds: float = 30.0,
    check: Positive = 1,
    progress: Progress | None = None,
) -> Tuning:
    """Write the fastest result on this machine, as measured on onnxruntime's CPU provider.

    The candidates are the original, levels 1 and 2, both with and without ``value_info``, and level
    2 with the target onnxruntime. The outputs of each candidate are compared with those of the
    original. A candidate with other applications of inexact rules must be faster than the best
    candidate before it by more than the spread of the runs. The result is never a candidate that
    was measured to be slower than the original.

    Args:
        source: The path of the model.
        destination: The path of the result, which may be the source.
        dims: Sizes of dynamic dimensions, for the measurement and the check. Other sizes in the
            measurement are 1 for a batch and 16 otherwise, or other sizes on which the model runs.
        threads: Threads of onnxruntime. 0 means all threads, as in a default session.
        seconds: Seconds after which the measurement ends, including the time for the optimization
            of all candidates. At least nine runs of each candidate are measured.
        check: Number of random inputs on which each candidate is compared with the original.
        progress: Called with a stage, the work done and the total of the stage.

    Returns:
        The measurements.

    Raises:
        UsageError: An argument is invalid, or the model does not run on random inputs.
        ModelError: The model cannot be read, or onnxruntime cannot load it.
        OnnxFoldError: The result cannot be written.
    """
    end = time.monotonic() + seconds
    report = progress or (lambda stage, done, total: None)
    options: dict[str, Any] = {"check": check, "check_dims": dict(dims or {}), "fsync": False}
    failed: dict[str, str] = {}
    inexact: dict[str, dict[str, int]] = {ORIGINAL: {}}
    parent, name = os.path.split(real_target(os.fsdecode(os.fspath(destination))))
    sessions = {ORIGINAL: Benched(os.fspath(source)).open(session_options(threads=threads), CPU)}
    with files.scratch_folder(name, parent=parent) as folder:
        for k, (candidate, own_options) in enumerate(_CANDIDATES.items()):
            report("optimize", k, len(_CANDIDATES))
            path = os.path.join(folder, f"{k}.onnx")
            try:
                optimized = optimize_file(source, path, **options, **own_options)
                inexact[candidate] = optimized.inexact
                sessions[candidate] = Benched(path).open(session_options(threads=threads), CPU)
            except OnnxFoldError as error:
                failed[candidate] = error.reason

        def has_next(index: int) -> bool:
            remaining = max(0.0, end - time.monotonic())
            report("measure", round(seconds - remaining), max(1, round(seconds)))
            return index < _MIN_ROUNDS or remaining > 0

        times_by_session, sizes = timed_runs(
            source,
            list(sessions.values()),
            threads,
            dims or {},
            rounds=_MAX_ROUNDS,
            has_next=has_next,
        )
    times = dict(zip(sessions, times_by_session, strict=True))
    ratios = {candidate: _ratios(times[ORIGINAL], times[candidate]) for candidate in times}
    speedup = {candidate: statistics.median(ratios[candidate]) for candidate in times}
    chosen = _fastest(times, speedup, inexact)
    if chosen == ORIGINAL:
        storage.save(storage.load(source), destination)
    else:
        optimize_file(source, destination, **_CANDIDATES[chosen])
    return Tuning(
        seconds={candidate: statistics.median(times[candidate]) for candidate in times},
        speedup=speedup,
        quartiles={candidate: quartiles(ratios[candidate]) for candidate in times},
        failed=failed,
        chosen=chosen,
        sizes=sizes,
        threads=threads,
        rounds=len(times[ORIGINAL]),
    )


def _fastest(
    times: Mapping[str, Sequence[float]],
    speedup: Mapping[str, float],
    inexact: Mapping[str, Mapping[str, int]],
) -> str:
    """Return the fastest candidate.

    A candidate replaces the fastest candidate before it if it is faster. If their applications of
    inexact rules differ, it must be faster by more than the spread of the runs.
    """
    fastest = ORIGINAL
    for candidate in times:
        speedups = _ratios(times[fastest], times[candidate])
        median_speedup = statistics.median(speedups)
        is_faster = median_speedup > 1 and speedup[candidate] > speedup[fastest]
        is_as_exact = inexact[candidate] == inexact[fastest]
        if is_faster and (is_as_exact or exceeds_spread(median_speedup, quartiles(speedups))):
            fastest = candidate
    return fastest


def _ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return the median speedup of each of `_MIN_ROUNDS` groups of neighbouring rounds.

    The speedup of a group has less noise than the speedup of a round.
    """
    speedups = [a / b for a, b in zip(before, after, strict=True)]
    bounds = [len(speedups) * k // _MIN_ROUNDS for k in range(_MIN_ROUNDS + 1)]
    return [statistics.median(speedups[a:b]) for a, b in pairwise(bounds)]
