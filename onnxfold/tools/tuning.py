"""Find the fastest result on this machine: optimize a model in several ways and measure each."""

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
"""Options by name, the most exact first."""

_LEAST_ROUNDS = 9
_MOST_ROUNDS = 1000


@dataclass(frozen=True, repr=False)
class Tuning(Printable):
    """The candidates that were measured, and the one that was written.

    Attributes:
        seconds: Median seconds of a run, by candidate: "original", or options of the command line.
        speedup: How many times as fast as the original: median of nine groups of neighbouring runs,
            of each the median.
        quartiles: The quartiles of the groups.
        failed: Why a candidate was not measured.
        chosen: The candidate that was written.
        sizes: Sizes of dynamic dimensions that were measured.
        threads: Threads of onnxruntime; 0 for all.
        rounds: Interleaved runs of each.
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
        """Yield a row for each candidate, and which was written, and why."""
        rows = []
        for name, seconds in self.seconds.items():
            low, high = self.quartiles[name]
            speed = f"{self.speedup[name]:.2f}x"
            rows.append((name, time_text(seconds), speed, f"{low:.2f}-{high:.2f}x"))
        yield Table(("candidate", ">time", ">speed", ">spread"), rows)
        yield from (f"{name} was not measured: {reason}" for name, reason in self.failed.items())
        sizes = "".join(f", {name} = {size}" for name, size in self.sizes.items())
        which = count_text(self.threads, "thread") if self.threads else "all threads"
        yield f"{self.rounds} interleaved runs of each, {which}{sizes}"
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
    """Write the fastest result on this machine, by measurement on onnxruntime's CPU provider.

    Candidates are the model as it is, levels 1 and 2, also with ``value_info``, and the target
    onnxruntime. All are compared with the original. One in which other rules fired that may change
    bits must be faster by more than the spread of the runs than those before it. The result never
    measured slower than the original.

    Args:
        source: The path of the model.
        destination: Where the result goes; may be the source.
        dims: Sizes of dynamic dimensions, for measuring and for the check; others are 1 for a batch
            and 16, or what the model runs with.
        threads: Threads of onnxruntime; 0 for all, as in a default session.
        seconds: Time for everything but the least number of runs.
        check: Random inputs on which each candidate is compared.
        progress: Called with a stage, the work done and the total of the stage.

    Raises:
        UsageError: An argument does not fit, or the model does not run on random inputs.
        ModelError: The model cannot be read, or onnxruntime does not take it.
    """
    end = time.monotonic() + seconds
    told = progress or (lambda stage, done, total: None)
    options: dict[str, Any] = {"check": check, "check_dims": dict(dims or {}), "fsync": False}
    failed: dict[str, str] = {}
    inexact: dict[str, dict[str, int]] = {ORIGINAL: {}}
    parent, name = os.path.split(real_target(os.fsdecode(os.fspath(destination))))
    sessions = {ORIGINAL: Benched(os.fspath(source)).open(session_options(threads=threads), CPU)}
    with files.scratch_folder(name, parent=parent) as folder:
        for k, (each, how) in enumerate(_CANDIDATES.items()):
            told("optimize", k, len(_CANDIDATES))
            path = os.path.join(folder, f"{k}.onnx")
            try:
                inexact[each] = optimize_file(source, path, **options, **how).inexact
                sessions[each] = Benched(path).open(session_options(threads=threads), CPU)
            except OnnxFoldError as error:
                failed[each] = error.reason

        def is_time_left(turn: int) -> bool:
            left = max(0.0, end - time.monotonic())
            told("measure", round(seconds - left), max(1, round(seconds)))
            return turn < _LEAST_ROUNDS or left > 0

        opened = list(sessions.values())
        took, sizes = timed_runs(
            source, opened, threads, dims or {}, rounds=_MOST_ROUNDS, going=is_time_left
        )
    times = dict(zip(sessions, took, strict=True))
    ratios = {each: _ratios(times[ORIGINAL], times[each]) for each in times}
    speedup = {each: statistics.median(ratios[each]) for each in times}
    chosen = ORIGINAL
    for each in times:
        gains = _ratios(times[chosen], times[each])
        gain = statistics.median(gains)
        is_faster = gain > 1 and speedup[each] > speedup[chosen]
        is_as_exact = inexact[each] == inexact[chosen]
        if is_faster and (is_as_exact or exceeds_spread(gain, quartiles(gains))):
            chosen = each
    if chosen == ORIGINAL:
        storage.save(storage.load(source), destination)
    else:
        optimize_file(source, destination, **_CANDIDATES[chosen])
    return Tuning(
        {each: statistics.median(times[each]) for each in times},
        speedup,
        {each: quartiles(ratios[each]) for each in times},
        failed,
        chosen,
        sizes,
        threads,
        len(took[0]),
    )


def _ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return the speedup in each group of rounds: more rounds make it more certain."""
    speedups = [a / b for a, b in zip(before, after, strict=True)]
    bounds = [len(speedups) * k // _LEAST_ROUNDS for k in range(_LEAST_ROUNDS + 1)]
    return [statistics.median(speedups[a:b]) for a, b in pairwise(bounds)]
