"""Work in several threads, and the CPU time that it takes."""

from __future__ import annotations

import contextvars
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")

# Default number of threads. With more threads, the memory bandwidth is the bottleneck.
THREADS = min(4, os.cpu_count() or 1)

_helper_seconds = contextvars.ContextVar[float]("helper_seconds", default=0.0)
"""The CPU seconds of the finished helper threads of the current thread."""


def cpu_time() -> float:
    """Return the CPU seconds of this thread and of its finished helper threads."""
    return time.thread_time() + _helper_seconds.get()


def add_helpers(seconds: float) -> None:
    """Add the CPU seconds of helper threads to those of this thread."""
    _helper_seconds.set(_helper_seconds.get() + seconds)


def for_each(
    items: Iterable[Item],
    work: Callable[[Item], object],
    threads: int = THREADS,
    done: Callable[[], object] = lambda: None,
) -> None:
    """Call ``work`` on all items, in any order, and ``done`` in this thread after each item.

    The first exception is raised after all threads have finished their current items. No further
    items are started.
    """
    if threads <= 1:
        for item in items:
            work(item)
            done()
        return

    spent: list[float] = []

    def timed(item: Item) -> None:
        start = cpu_time()
        try:
            work(item)
        finally:
            spent.append(cpu_time() - start)

    executor = ThreadPoolExecutor(threads, "onnxfold-block")
    try:
        for future in as_completed([executor.submit(timed, item) for item in items]):
            future.result()
            done()
    finally:
        executor.shutdown(cancel_futures=True)
        add_helpers(sum(spent))
