"""Tiles by several threads at once, in order where the order matters."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

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
                    try:
                        item = next(iterator)
                    except StopIteration:
                        return
                work(item)
        except BaseException:
            stop = True
            raise

    if threads <= 1:
        run()
        return
    with ThreadPoolExecutor(threads - 1, "onnxfold-tile") as executor:
        helpers = [executor.submit(run) for _ in range(threads - 1)]
        run()
    for helper in helpers:
        helper.result()


def in_order(
    items: Iterable[Item], work: Callable[[Item], Result], threads: int = THREADS
) -> Iterator[Result]:
    """``work`` of all items in their order, a few items ahead of the one who asks."""
    if threads <= 1:
        yield from map(work, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "onnxfold-tile") as executor:
        try:
            for item in items:
                pending.append(executor.submit(work, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
