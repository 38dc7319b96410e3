"""Pieces of work by several threads at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Item = TypeVar("Item")

# More threads than this only wait for memory.
THREADS = min(4, os.cpu_count() or 1)


def for_each(
    items: Iterable[Item],
    work: Callable[[Item], object],
    threads: int = THREADS,
    done: Callable[[], object] = lambda: None,
) -> None:
    """Call ``work`` on all items, in any order, and ``done`` in this thread after each.

    The first exception stops the others after their present item, and is raised.
    """
    if threads <= 1:
        for item in items:
            work(item)
            done()
        return
    with ThreadPoolExecutor(threads, "onnxfold-block") as executor:
        try:
            for future in as_completed([executor.submit(work, item) for item in items]):
                future.result()
                done()
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
