"""Garbage collection, and freed memory that allocators keep."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

from onnxfold.support.system import trim_heap


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: the millions of objects of a large graph are all in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


trims: list[Callable[[], None]] = []
"""Functions that return freed memory to the system which other allocators keep."""


def give_back_freed() -> None:
    """Return freed memory to the system where the C library, or another one, keeps some of it."""
    for trim in trims:
        trim()
    trim_heap()
