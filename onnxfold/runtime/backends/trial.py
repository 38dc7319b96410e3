"""Trying kernels, and timing them against onnxruntime, in another process: wrong code ends it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from onnxfold.onnxruntime_sessions import array_of, open_session, ort_value
from onnxfold.runtime.backends.fitting import fitting
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
) -> tuple[list[list[Any]], list[float] | None]:
    """Results of calls of a kernel, one after the other in the same process; and how long it takes.

    Args:
        kernel: The kernel, with a file.
        folder: The folder that its files are named from.
        calls: For each its inputs.
        weights: Its weights.
        seconds: Time limit.
        model: The file of the same model, with which onnxruntime is timed, on the inputs of the
            first call.

    Returns:
        Arrays, and seconds of the kernel and of onnxruntime, None if one of them was not timed.

    Raises:
        CompileError: It does not load, fails, crashes, or takes too long.
    """
    request = {
        "kernel": asdict(kernel),
        "folder": str(folder.resolve()),
        "calls": len(calls),
        "model": None if model is None else str(model),
    }
    arrays = [*weights, *(array for call in calls for array in call)]
    times, made = run_function(f"{__name__}:serve", request, arrays, seconds, what="the kernel")
    results = iter(made)
    return [list(islice(results, len(kernel.outputs))) for _ in calls], times


def serve(request: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Call a kernel, and time it; see `tried`."""
    kernel, given = Kernel.from_dict(request["kernel"]), iter(arrays)
    weights = _named(kernel.weights, given)
    run = create(kernel.backend).load(kernel, Path(request["folder"]), weights)
    calls = [_named(kernel.inputs, given) for _ in range(request["calls"])]
    results = []
    for call in calls:
        made = run(call)
        results += [array_of(made[name]) for name in kernel.outputs]
    times = None
    if request["model"] is not None:
        with contextlib.suppress(Exception):  # whatever a foreign runtime raises
            times = _times(kernel, run, request["model"], calls[0])
    return times, results


def _named(names: Sequence[str], arrays: Iterator[Any]) -> dict[str, Any]:
    return dict(zip(names, islice(arrays, len(names)), strict=True))


def _times(
    kernel: Kernel, run: Callable[[Any], Mapping[str, Any]], model: str, given: Mapping[str, Any]
) -> list[float]:
    """The shortest time of the kernel and of onnxruntime, in turns: other processes disturb both.

    Each runs twice in its turn, as threads of the one before it may wait for work in a loop.
    """
    feeds = fitting(kernel.takes, {name: ort_value(feed) for name, feed in given.items()})
    session = open_session(model, fold_options(None))
    runs: list[Callable[[], object]] = [
        lambda: [ort_value(value) for value in run(feeds).values()],
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
