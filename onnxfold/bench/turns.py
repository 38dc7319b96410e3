"""Timing several things in turns: what disturbs the machine disturbs all of them."""

from __future__ import annotations

import bisect
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Runner = Callable[[], Any]

_LEAST = 0.002  # seconds of one turn: what takes less runs several times in it


@dataclass(frozen=True)
class Spread:
    """Of several measurements the median and the least."""

    median: float
    least: float


def spread(measured: Iterable[float]) -> Spread:
    """Of at least one measurement."""
    measured = list(measured)
    return Spread(statistics.median(measured), min(measured))


@dataclass(frozen=True)
class Taken:
    """Seconds of a run: of wall time, and of CPU time of all threads."""

    wall: float
    cpu: float


def in_turns(runs: Sequence[Runner], rounds: int) -> list[list[Taken]]:
    """Return what a run of each takes in each round; who goes first alternates.

    Args:
        runs: What is timed; each has run before.
        rounds: How often each has its turn.
    """
    took: list[list[Taken]] = [[] for _ in runs]
    times = []
    for run in runs:
        begin = time.perf_counter()
        run()
        times.append(max(1, int(_LEAST / max(time.perf_counter() - begin, 1e-6))))
    for turn in range(rounds):
        for k in range(len(runs)) if turn % 2 else reversed(range(len(runs))):
            cpu, wall = time.process_time(), time.perf_counter()
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


def op_times(session: Any, run: Callable[[], Any], rounds: int) -> list[OpTime]:
    """Return the ops of a session that was made with profiling, those with the most time first.

    Args:
        session: An onnxruntime session; its profile ends here.
        run: Runs it once.
        rounds: How many runs to take the medians of; one before them is not counted.
    """
    for _ in range(rounds + 1):
        run()
    with open(session.end_profiling(), encoding="utf-8") as file:
        events = json.load(file)
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == "model_run")
    found: dict[str, list[list[float]]] = {}
    for event in events:
        if event["name"].endswith("_kernel_time"):
            turn = bisect.bisect(ends, event["ts"]) - 1
            if 0 <= turn < rounds:
                of_runs = found.setdefault(event["args"]["op_name"], [[] for _ in range(rounds)])
                of_runs[turn].append(event["dur"] * 1e-6)
    times = [
        OpTime(op, statistics.median(map(len, of_runs)), statistics.median(map(sum, of_runs)))
        for op, of_runs in found.items()
    ]
    return sorted(times, key=lambda each: -each.seconds)
