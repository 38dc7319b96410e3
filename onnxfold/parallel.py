"""Pieces of work by several threads at once."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")

# More threads than this only wait for memory.
THREADS = min(4, os.cpu_count() or 1)


def for_each(items: Iterable[Item], work: Callable[[Item], object], threads: int = THREADS) -> None:
    """Call ``work`` on all items, in any order; the items are asked for by one thread at a time.

    The first exception stops the others after their present item, and is raised.
    """
    iterator = iter(items)
    lock = threading.Lock()
    stop = False

    def run() -> None:
        nonlocal stop
        try:
            while not stop:
                with lock:
                    found = list(itertools.islice(iterator, 1))
                if not found:
                    return
                work(found[0])
        except BaseException:
            stop = True
            raise

    if threads <= 1:
        run()
        return
    with ThreadPoolExecutor(threads - 1, "onnxfold-block") as executor:
        helpers = [executor.submit(run) for _ in range(threads - 1)]
        run()
    for helper in helpers:
        helper.result()
