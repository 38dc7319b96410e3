"""Pauses of garbage collection, and the return of freed memory to the system."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

from onnxfold.support.system import trim_heap


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collection in this context.

    A large graph has millions of objects. Visiting them takes long and frees no memory.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


trims: list[Callable[[], None]] = []
"""Functions that make allocators other than the C library return freed memory to the system."""


def release_freed_memory() -> None:
    """Make the C library and the allocators in `trims` return freed memory to the system."""
    for trim in trims:
        trim()
    trim_heap()
