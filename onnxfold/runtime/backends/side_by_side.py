"""Work that other processes do, as much of it at a time as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from onnxfold.memory import processors
from onnxfold.runtime.backends.process import CommandGroup

Result = TypeVar("Result")

Progress = Callable[[str, int, int], None]
"""Called with a stage, the work done and all work of the stage."""


def side_by_side(
    jobs: Sequence[Callable[[], Result]], stage: str, progress: Progress | None = None
) -> list[Result]:
    """The results of jobs, in their order. Their processes end with this call, however it ends.

    Args:
        jobs: Functions that start processes and wait for them.
        stage: What they do, for ``progress``.
        progress: Called in this thread.
    """
    report = progress or (lambda stage, done, total: None)
    group = CommandGroup()
    threads = max(1, min(processors(), len(jobs)))
    executor = ThreadPoolExecutor(threads, "onnxfold-compile", group.join)
    try:
        futures = [executor.submit(job) for job in jobs]
        report(stage, 0, len(jobs))
        for done, _ in enumerate(as_completed(futures), 1):
            report(stage, done, len(jobs))
        return [future.result() for future in futures]
    except BaseException:  # also when the user interrupts
        executor.shutdown(wait=False, cancel_futures=True)
        group.end()
        raise
    finally:
        executor.shutdown()
