"""Folded tensors by the content of what they were made of, bounded in bytes, shared by sessions."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

DEFAULT_BYTES = 1 << 30
"""Bound of a cache that is not told another one."""


@dataclass(frozen=True)
class Folded:
    """The results of one fold: onnxruntime's values by name, and the bytes that they take."""

    values: Mapping[str, Any]
    nbytes: int


@dataclass
class CacheStatistics:
    """What a cache did and holds, in this process.

    Attributes:
        hits: Asked for and there, or made by somebody else meanwhile.
        misses: Asked for and not there: folds.
        waits: Those of either that waited for another thread or process.
        evictions: Left out again to keep the bound.
        too_large: Folded but never held, being larger than the bound.
        entries: Held now.
        bytes: Held now.
        peak_bytes: Most that was held.
        seconds: Spent on folding, on waiting for others, and on reading and writing files.
    """

    hits: int = 0
    misses: int = 0
    waits: int = 0
    evictions: int = 0
    too_large: int = 0
    entries: int = 0
    bytes: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0


class FoldCache:
    """A thread-safe cache: least recently used first out, each key made once at a time.

    What a handle holds stays alive after its eviction; it no longer counts here.

    With a folder, processes share what they fold: it is made once, by whoever asks first, written
    there and mapped by all, so that it is in memory once. The folder may be used by any number of
    processes of one user, which may end at any moment. What is read is verified, and only files
    are read to which nobody else can write.

    Args:
        folder: A folder for all processes of a machine; without, nothing is shared or written.
        max_bytes: Most bytes of folded tensors to hold, in this process and in the folder each.

    Raises:
        UsageError: Others may write to the folder.
        OnnxFoldError: The folder cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self.max_bytes = max_bytes
        self._store = None
        if folder is not None:
            from onnxfold.runtime.sessions.store import FoldStore  # it needs onnx-ir

            self._store = FoldStore(folder, max_bytes)
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Folded] = OrderedDict()
        self._making: dict[Hashable, Future[Folded]] = {}
        self._statistics = CacheStatistics()

    def get(self, key: Hashable, make: Callable[[], Folded]) -> Folded:
        """Return what is held under the key; otherwise what ``make`` gives, called by one thread
        only.

        An exception of ``make`` reaches every thread that waits for it; the next one tries again.

        Args:
            key: Equal for equal tensors; its ``repr`` tells processes what they may share.
            make: Folds.
        """
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                self._statistics.hits += 1
            else:
                others = self._making.get(key)
                mine = self._making.setdefault(key, Future())
        if found is not None:
            if self._store is not None:
                self._store.touch(key)
            return found
        begin = time.perf_counter()
        made, waited = others is None, others is not None
        try:
            if others is not None:
                return others.result()
            if self._store is None:
                folded = make()
            else:
                folded, made, waited = self._store.get(key, make)
            self._hold(key, folded)
            mine.set_result(folded)
            return folded
        except BaseException as error:
            if others is None:
                mine.set_exception(error)
            raise
        finally:
            with self._lock:
                if others is None:
                    del self._making[key]
                self._statistics.misses += made
                self._statistics.hits += not made
                self._statistics.waits += waited
                self._statistics.seconds += time.perf_counter() - begin

    def statistics(self) -> CacheStatistics:
        """Return a copy of the figures as they are now."""
        with self._lock:
            return replace(self._statistics)

    def clear(self) -> None:
        """Hold nothing any more; files in the folder stay."""
        with self._lock:
            self._entries.clear()
            self._statistics.entries = self._statistics.bytes = 0

    def _hold(self, key: Hashable, made: Folded) -> None:
        with self._lock:
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


SHARED = FoldCache()
"""The cache of all sessions of this process that were not given their own."""
