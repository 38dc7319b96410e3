"""A cache of folded tensors, which sessions share. Its size in bytes is bounded.

The keys are hashes of the contents from which the tensors are computed. With a folder, all
processes of a machine share the tensors. The tensors of one key are the initializers of a model in
a separate folder. A rename creates this folder in one step, and it does not change afterwards. It
may be removed at any time, because a process that has mapped the tensors keeps their pages. The
process that folds a key holds a lock, and other processes wait for it. The system releases the lock
of a process that ends, and the next process removes the files of the incomplete fold.

This module imports onnx-ir only if the cache has a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from onnxfold.api.signatures import checked
from onnxfold.runtime.bundles.bundle import hash_model
from onnxfold.support import files, forks
from onnxfold.support.errors import ModelError, OnnxFoldError, UsageError
from onnxfold.support.memory import give_back_freed
from onnxfold.support.onnxruntime_sessions import array_of, has_numbers, ort_copy, ort_value
from onnxfold.support.system import cpu_features, writable_by_others
from onnxfold.support.user_caches import put, touch

logger = logging.getLogger("onnxfold")

DEFAULT_BYTES = 1 << 30
"""Default bound of a cache."""

_FORMAT = 3  # of the folder
_MODEL = "folded.onnx"
_DIGEST = "sha256"


@dataclass(frozen=True)
class Folded:
    """The results of one fold: onnxruntime's values by name, and their bytes."""

    values: Mapping[str, Any]
    nbytes: int


@dataclass
class CacheStatistics:
    """Counts and sizes of a cache in this process.

    Attributes:
        hits: Number of requests for entries that exist or that another thread or process computes.
        misses: Number of requests for other entries: folds, and waits for folds that failed.
        waits: Number of hits and misses that waited for another thread or process.
        evictions: Number of entries that were removed to keep the bound.
        too_large: Number of folds whose result exceeds the bound.
        entries: Current number of entries.
        bytes: Current size of the entries.
        peak_bytes: Maximum size of the entries.
        seconds: Time for folding, for waiting, and for reading and writing files.
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
    """A thread-safe LRU cache of folded tensors. One thread at a time computes a key.

    A handle keeps its tensors alive after their eviction. They no longer count in this cache.

    With a folder, processes share folded tensors. The first process that needs a key computes it
    and writes it to the folder. All processes map the file, so the tensors are in memory once. Any
    number of processes of one user may use the folder, and they may end at any time. Files are
    verified when they are read. Files that other users can write to are not read.

    Args:
        folder: A folder for all processes of a machine; None to share and write nothing.
        max_bytes: Maximum bytes of folded tensors, in this process and in the folder each.

    Raises:
        UsageError: Other users may write to the folder.
        OnnxFoldError: The folder cannot be created.
    """

    @checked
    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self.max_bytes = max_bytes
        self.has_folder = folder is not None
        self.is_empty_forever = max_bytes == 0 and folder is None
        self._store = None if folder is None else _FoldStore(folder, max_bytes)
        self._entries: OrderedDict[Hashable, Folded] = OrderedDict()
        self._making: dict[Hashable, Future[Folded]] = {}
        self._statistics = CacheStatistics()
        self._lock = forks.Lock()
        forks.reset_after_fork(self, FoldCache._forget_threads)

    def get(self, key: Hashable, make: Callable[[], Folded]) -> Folded:
        """Return the entry of a key, or the result of ``make``, which only one thread calls.

        Every thread that waits for ``make`` receives its exception. The next request calls it
        again.

        Args:
            key: Equal for equal tensors. Processes share tensors whose keys have the same ``repr``.
                A cache with `is_empty_forever` ignores the key.
            make: Computes the tensors.
        """
        if self.is_empty_forever:
            return self._made(make)
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
                touch(self._store.path(key))  # this process has the tensors mapped
            return found
        begin = time.perf_counter()
        made = True
        waited = others is not None
        try:
            if others is not None:
                folded = others.result()
                made = False
                return folded
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
                    self._making.pop(key, None)
                self._statistics.misses += made
                self._statistics.hits += not made
                self._statistics.waits += waited
                self._statistics.seconds += time.perf_counter() - begin

    def statistics(self) -> CacheStatistics:
        """Return a copy of the figures as they are now."""
        with self._lock:
            return replace(self._statistics, entries=len(self._entries))

    def clear(self) -> None:
        """Hold nothing any more; memory goes back to the system, files in the folder stay."""
        with self._lock:
            self._entries.clear()
            self._statistics.bytes = 0
        give_back_freed()

    def _forget_threads(self) -> None:
        """Let a forked process wait for no thread of its parent, nor free what these allocated."""
        self._making = {}
        forks.never_destroy(tuple(self._entries.values()))
        self._statistics.bytes = sum(folded.nbytes for folded in self._entries.values())

    def _made(self, make: Callable[[], Folded]) -> Folded:
        """Fold for a cache that cannot hold anything."""
        begin = time.perf_counter()
        folded: Folded | None = None
        try:
            folded = make()
            return folded
        finally:
            with self._lock:
                self._statistics.misses += 1
                self._statistics.too_large += folded is not None
                self._statistics.seconds += time.perf_counter() - begin

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
            statistics.peak_bytes = max(statistics.peak_bytes, statistics.bytes)


class _FoldStore:
    """A folder with folded tensors, its owner's; those used least recently are removed first."""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        files.check_path(folder)
        self.folder = os.path.realpath(folder)
        self._max_bytes = max_bytes
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            status = os.stat(self.folder)
        except OSError as error:
            raise files.os_error(error, self.folder) from error
        if writable_by_others(status):
            reason = "is another user's folder, or one that others may write to"
            raise UsageError(reason, file=self.folder)
        files.remove_leftovers(self.folder)

    def get(self, key: Hashable, make: Callable[[], Folded]) -> tuple[Folded, bool, bool]:
        """Return the stored tensors of a key; if there are none, store what ``make`` returns.

        Without room on the disk, and for tensors that a model cannot hold, nothing is stored. Also
        returns whether ``make`` was called, and whether another process was waited for.
        """
        path = self.path(key)
        waited = False
        with contextlib.ExitStack() as stack:
            try:
                folded = self._opened(path)
                if folded is None:
                    waited = stack.enter_context(files.locked(path))
                    folded = self._opened(path)
            except OSError as error:
                logger.warning("folded tensors are not kept: %s", error)
                return make(), True, waited
            if folded is not None:
                return folded, False, waited
            made = make()
            kept = self._kept(path, made)
        if kept is not made:
            del made
            give_back_freed()
        return kept, True, waited

    def path(self, key: Hashable) -> str:
        """Return the folder of a key; the versions and the CPU decide about bits, too."""
        makers = [(name, metadata.version(name)) for name in ("onnxfold", "onnxruntime")]
        text = repr((_FORMAT, makers, cpu_features(), key))
        return os.path.join(self.folder, hashlib.sha256(text.encode()).hexdigest())

    def _opened(self, path: str) -> Folded | None:
        """Return the tensors of a folder if it is there; what `_kept` did not write is removed."""
        if not os.path.lexists(path):
            return None
        try:
            folded = _load(path)
            touch(path)
            return folded
        except (OnnxFoldError, OSError) as error:
            reason = str(error)
        # The exception refers to mapped files of the folder, which Windows does not remove.
        if os.path.lexists(path):  # otherwise another process has just removed it
            logger.warning("%s is removed: %s", path, reason)
            files.end_unused_mappings()
            shutil.rmtree(path)
        return None

    def _kept(self, path: str, made: Folded) -> Folded:
        """Write tensors to a folder; the same tensors in its pages, or ``made`` if that fails."""
        import onnx_ir as ir

        from onnxfold.ir import storage

        if not all(map(has_numbers, made.values.values())):
            return made
        tensors = [ir.tensor(array_of(value), name=name) for name, value in made.values.items()]
        weights = [ir.Value(name=tensor.name, const_value=tensor) for tensor in tensors]
        graph = ir.Graph([], [], nodes=[], initializers=weights, name="folded")
        model = ir.Model(graph, ir_version=10)
        try:
            plan = storage.planned(model, external_data=True)
            if plan.size > self._max_bytes:
                return made
            with files.scratch_folder("fold", parent=self.folder) as new:
                storage.save(model, os.path.join(new, _MODEL), plan=plan, fsync=False)
                Path(new, _DIGEST).write_text(hash_model(Path(new, _MODEL)), encoding="ascii")
                put(new, path, self._max_bytes)
                return _load(path, is_trusted=True)
        except (OSError, OnnxFoldError) as error:
            logger.warning("folded tensors are not kept: %s", error)
            return made
        finally:
            graph.initializers.clear()  # a model is a cycle, which would keep the tensors


def _load(path: str, *, is_trusted: bool = False) -> Folded:
    """Return the tensors of a folder, mapped; they are verified unless the folder is trusted."""
    from onnxfold.ir import storage

    file = Path(path, _MODEL)
    if not is_trusted and Path(path, _DIGEST).read_bytes() != hash_model(file).encode():
        raise ModelError("it is damaged", file=path)
    values = {}
    for name, value in storage.load(file).graph.initializers.items():
        assert value.const_value is not None
        values[name] = ort_value(value.const_value.numpy())
        if values[name].data_ptr() % 64:  # a small tensor, which lies in the model itself
            values[name] = ort_copy(values[name])
    return Folded(values, sum(value.tensor_size_in_bytes() for value in values.values()))
