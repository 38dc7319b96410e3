"""Folded tensors by the content of what they were made of, bounded in bytes, shared by sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

DEFAULT_BYTES = 1 << 30
"""Bound of the cache that all sessions share unless they are given another one."""


@dataclass(frozen=True)
class Folded:
    """Results of one fold: onnxruntime values by name, and the bytes they take."""

    values: Mapping[str, Any]
    nbytes: int


@dataclass
class CacheStatistics:
    """What a cache did and holds.

    Attributes:
        hits: Asked for and there (or being made by another thread).
        misses: Asked for and not there: folds.
        evictions: Left out again to keep the bound.
        too_large: Folded but never held, being larger than the bound.
        entries: Held now.
        bytes: Held now.
        peak_bytes: Most that was held.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    too_large: int = 0
    entries: int = 0
    bytes: int = 0
    peak_bytes: int = 0


class FoldCache:
    """A thread-safe cache: least recently used first out, each key made once at a time.

    What a handle holds stays alive after its eviction; it no longer counts here.

    Args:
        max_bytes: Most bytes of folded tensors to hold.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Folded] = OrderedDict()
        self._making: dict[Hashable, Future[Folded]] = {}
        self._statistics = CacheStatistics()

    def get(self, key: Hashable, make: Callable[[], Folded]) -> Folded:
        """What is held under the key; otherwise what ``make`` gives, called by one thread only.

        An exception of ``make`` reaches every thread that waits for it; the next one tries again.
        """
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                self._statistics.hits += 1
                return found
            future = self._making.get(key)
            if future is None:
                self._statistics.misses += 1
                mine = self._making[key] = Future()
            else:
                self._statistics.hits += 1
        if future is not None:
            return future.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._hold(key, made)
        mine.set_result(made)
        return made

    def statistics(self) -> CacheStatistics:
        """A copy of the figures as they are now."""
        with self._lock:
            return CacheStatistics(**vars(self._statistics))

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._entries.clear()
            self._statistics.entries = self._statistics.bytes = 0

    def _hold(self, key: Hashable, made: Folded) -> None:
        statistics = self._statistics
        if made.nbytes > self.max_bytes:
            statistics.too_large += 1
            return
        while statistics.bytes + made.nbytes > self.max_bytes:
            _, old = self._entries.popitem(last=False)
            statistics.bytes -= old.nbytes
            statistics.evictions += 1
        self._entries[key] = made
        statistics.bytes += made.nbytes
        statistics.entries = len(self._entries)
        statistics.peak_bytes = max(statistics.peak_bytes, statistics.bytes)


_shared = FoldCache()


def shared_cache() -> FoldCache:
    """The cache of all sessions of this process that were not given their own."""
    return _shared
