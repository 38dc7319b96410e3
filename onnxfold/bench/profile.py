"""Where the time of a run goes: onnxruntime's own profile, summed by op."""

from __future__ import annotations

import bisect
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OpTime:
    """An op: how many of its kernels a run calls, and their seconds in it, medians of runs."""

    op: str
    calls: float
    seconds: float


def op_times(session: Any, run: Callable[[], Any], rounds: int) -> list[OpTime]:
    """The ops of a session that was made with profiling, those with the most time first.

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
