"""Trying kernels, and timing them against onnxruntime, in another process: wrong code ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from onnxfold.onnxruntime_sessions import array_of, open_session, ort_value
from onnxfold.runtime.backends.loading import check_inputs
from onnxfold.runtime.backends.process import run_function
from onnxfold.runtime.backends.registry import create
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.bundles.session_options import fold_options

_ENOUGH = 0.1  # seconds for a kernel and onnxruntime, after one run of each


def tried(
    kernel: Kernel,
    folder: Path,
    calls: Sequence[Sequence[Any]],
    weights: Sequence[Any],
    seconds: float,
    model: Path | None = None,
    timed: int = 0,
) -> tuple[list[list[Any]], list[tuple[float, float]]]:
    """Call a kernel several times in another process, and time the first calls.

    Args:
        kernel: The kernel, with a file.
        folder: The folder that its files are named from.
        calls: For each its inputs.
        weights: Its weights.
        seconds: Time limit.
        model: The file of the same model, with which onnxruntime is timed.
        timed: How many of the calls are timed.

    Returns:
        The results of each call; and for those that are timed, seconds of the kernel and of
        onnxruntime.

    Raises:
        CompileError: The kernel does not load, fails, crashes, or takes too long.
    """
    request = [asdict(kernel), str(folder.resolve()), len(calls), model and str(model), timed]
    arrays = [*weights, *(array for call in calls for array in call)]
    times, made = run_function(f"{__name__}:serve", request, arrays, seconds, what="the kernel")
    results = iter(made)
    return [list(islice(results, len(kernel.outputs))) for _ in calls], times


def serve(request: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Call a kernel, and time it; see `tried`."""
    description, folder, count, model, timed = request
    kernel, given = Kernel.from_dict(description), iter(arrays)
    weights = _named(kernel.weights, given)
    run = create(kernel.backend).load(kernel, Path(folder), weights)
    calls = [_named(kernel.inputs, given) for _ in range(count)]
    results = []
    for call in calls:
        made = run(call)
        results += [array_of(made[name]) for name in kernel.outputs]
    return [_times(kernel, run, model, call) for call in calls[:timed]], results


def _named(names: Sequence[str], arrays: Iterator[Any]) -> dict[str, Any]:
    return dict(zip(names, islice(arrays, len(names)), strict=True))


def _times(
    kernel: Kernel, run: Callable[[Any], Mapping[str, Any]], model: str, given: Mapping[str, Any]
) -> list[float]:
    """Return the shortest time of the kernel and of onnxruntime, in turns: other processes
    disturb both.

    Each runs twice in its turn, as threads of the one before it may wait for work in a loop.
    """
    feeds = {name: ort_value(feed) for name, feed in given.items()}
    session = open_session(model, fold_options(None))

    def run_kernel() -> None:
        check_inputs(kernel, feeds)
        for value in run(feeds).values():
            ort_value(value)

    runs: list[Callable[[], object]] = [
        run_kernel,
        lambda: session.run_with_ort_values(None, feeds),
    ]
    for once in runs:
        once()
    best = [float("inf")] * len(runs)
    end = time.perf_counter() + _ENOUGH
    while True:
        for k, once in [(k, once) for k, once in enumerate(runs) for _ in range(2)]:
            begin = time.perf_counter()
            once()
            best[k] = min(best[k], time.perf_counter() - begin)
        if time.perf_counter() > end:
            return best
