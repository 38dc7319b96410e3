"""A cache of folded tensors, which sessions share. Its size in bytes is bounded.

The keys contain hashes of the contents from which the tensors are computed. If the cache has a
folder, all processes of a machine share the tensors. Each key has a subfolder with a model, whose
initializers are the tensors of the key. A rename creates the subfolder in one step. Afterwards, the
subfolder does not change. It may be removed at any time, because the system keeps the pages that a
process has mapped.

The process that folds a key holds a lock, and other processes wait for the lock. If the process
ends, the system releases the lock, and the next process removes the incomplete files.

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
from onnxfold.support.memory import release_freed_memory
from onnxfold.support.onnxruntime_sessions import array_of, has_numbers, ort_copy, ort_value
from onnxfold.support.system import cpu_features, writable_by_others
from onnxfold.support.user_caches import put, touch

logger = logging.getLogger("onnxfold")

DEFAULT_BYTES = 1 << 30
"""Default bound of a cache in bytes."""

_FORMAT = 3  # version of the format of the folder
_MODEL = "folded.onnx"
_DIGEST = "sha256"


@dataclass(frozen=True)
class Folded:
    """The results of one fold: onnxruntime's values by name, and their total size in bytes."""

    values: Mapping[str, Any]
    nbytes: int


@dataclass
class CacheStatistics:
    """Counts and sizes of a cache in this process.

    Attributes:
        hits: Number of requests for entries that exist or that another thread or process computes.
        misses: Number of other requests: folds, and waits for folds that failed.
        waits: Number of hits and misses that waited for another thread or process, or found a lock
            file of a process that was killed.
        evictions: Number of entries that were removed from memory because of the bound.
        too_large: Number of folds whose result is larger than the bound. With
            `FoldCache.stores_nothing`, all folds that did not fail.
        entries: Current number of entries in memory.
        bytes: Current size of these entries in bytes.
        peak_bytes: Maximum size of the entries in bytes so far.
        seconds: Time in seconds for folding, for waiting, and for reading and writing files.
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
    """A thread-safe LRU cache of folded tensors. One thread at a time computes those of a key.

    A handle keeps its tensors alive after their eviction. The size of the cache does not include
    evicted tensors.

    With a folder, processes share folded tensors. The first process that requests a key computes
    the tensors and writes them to the folder. All processes map the files, so the tensors are in
    memory once. Any number of processes of one user may use the folder, and the processes may end
    at any time. The cache verifies the hash of files when it reads them, except immediately after
    writing them.

    Args:
        folder: A folder for all processes of a machine. None means that tensors are neither shared
            between processes nor written.
        max_bytes: Maximum size of the folded tensors in bytes. The bound applies to this process
            and to the folder separately. With 0 and without a folder, the cache stores nothing.

    Attributes:
        has_folder: Whether the cache has a folder.
        stores_nothing: Whether each request computes the tensors.

    Raises:
        UsageError: The folder belongs to another user, or other users can write to it.
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
        self.stores_nothing = max_bytes == 0 and folder is None
        self._store = None if folder is None else _FoldStore(folder, max_bytes)
        self._entries: OrderedDict[Hashable, Folded] = OrderedDict()
        self._pending: dict[Hashable, Future[Folded]] = {}
        self._statistics = CacheStatistics()
        self._lock = forks.Lock()
        forks.reset_after_fork(self, FoldCache._forget_threads)

    def get(self, key: Hashable, make: Callable[[], Folded]) -> Folded:
        """Return the tensors of a key. If they are not cached, one thread calls ``make``.

        If ``make`` raises an exception, each waiting thread also raises the exception. The next
        request calls ``make`` again.

        Args:
            key: Equal keys have equal tensors. Processes share tensors whose keys have the same
                ``repr``. A cache with `stores_nothing` ignores the key.
            make: Computes the tensors.
        """
        if self.stores_nothing:
            return self._compute_only(make)
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                self._statistics.hits += 1
            else:
                awaited = self._pending.get(key)  # from a thread that computes the tensors
                own = self._pending.setdefault(key, Future())
        if found is not None:
            if self._store is not None:
                touch(self._store.path(key))  # a hit in memory is also a use of the files
            return found
        begin = time.perf_counter()
        is_computed = True
        waited = awaited is not None
        try:
            if awaited is not None:
                folded = awaited.result()
                is_computed = False
                return folded
            if self._store is None:
                folded = make()
            else:
                folded, is_computed, waited = self._store.get(key, make)
            self._insert(key, folded)
            own.set_result(folded)
            return folded
        except BaseException as error:
            if awaited is None:
                own.set_exception(error)
            raise
        finally:
            with self._lock:
                if awaited is None:
                    self._pending.pop(key, None)
                self._statistics.misses += is_computed
                self._statistics.hits += not is_computed
                self._statistics.waits += waited
                self._statistics.seconds += time.perf_counter() - begin

    def statistics(self) -> CacheStatistics:
        """Return a copy of the current statistics."""
        with self._lock:
            return replace(self._statistics, entries=len(self._entries))

    def clear(self) -> None:
        """Remove all entries of this process, and return freed memory to the system.

        Handles keep their tensors. Files in the folder are not removed.
        """
        with self._lock:
            self._entries.clear()
            self._statistics.bytes = 0
        release_freed_memory()

    def _forget_threads(self) -> None:
        # The threads of the parent do not exist in a forked process. Freeing the tensors would use
        # an allocator, whose lock another thread may have held at the fork.
        self._pending = {}
        forks.never_destroy(tuple(self._entries.values()))
        self._statistics.bytes = sum(folded.nbytes for folded in self._entries.values())

    def _compute_only(self, make: Callable[[], Folded]) -> Folded:
        """Compute tensors without storing them."""
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

    def _insert(self, key: Hashable, computed: Folded) -> None:
        with self._lock:
            statistics = self._statistics
            if computed.nbytes > self.max_bytes:
                statistics.too_large += 1
                return
            while statistics.bytes + computed.nbytes > self.max_bytes:
                _, old = self._entries.popitem(last=False)
                statistics.bytes -= old.nbytes
                statistics.evictions += 1
            self._entries[key] = computed
            statistics.bytes += computed.nbytes
            statistics.peak_bytes = max(statistics.peak_bytes, statistics.bytes)


class _FoldStore:
    """A folder with folded tensors, with LRU eviction. Only its owner may write to it."""

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
            reason = "the folder belongs to another user, or other users can write to it"
            raise UsageError(f"{reason}; use a folder of your own", file=self.folder)
        files.remove_leftovers(self.folder)

    def get(self, key: Hashable, make: Callable[[], Folded]) -> tuple[Folded, bool, bool]:
        """Return the stored tensors of a key, or store and return the result of ``make``.

        The result is not stored if the files cannot be written or the result is larger than the
        bound. Values other than tensors of numbers in the CPU's memory are not stored, either.

        Returns:
            The tensors, whether ``make`` was called, and whether the lock file existed. If so, this
            process usually waited for another process.
        """
        path = self.path(key)
        waited = False
        with contextlib.ExitStack() as stack:
            try:
                folded = self._read(path)
                if folded is None:
                    waited = stack.enter_context(files.locked(path))
                    folded = self._read(path)
            except OSError as error:
                logger.warning("folded tensors are not stored: %s", error)
                return make(), True, waited
            if folded is not None:
                return folded, False, waited
            computed = make()
            stored = self._write(path, computed)
        if stored is not computed:
            del computed
            release_freed_memory()
        return stored, True, waited

    def path(self, key: Hashable) -> str:
        """Return the subfolder of a key.

        The name of the subfolder is a hash of the key, the versions and the CPU. The bits of the
        tensors depend on all of these.
        """
        versions = [(name, metadata.version(name)) for name in ("onnxfold", "onnxruntime")]
        text = repr((_FORMAT, versions, cpu_features(), key))
        return os.path.join(self.folder, hashlib.sha256(text.encode()).hexdigest())

    def _read(self, path: str) -> Folded | None:
        """Return the tensors in a subfolder. None if the subfolder does not exist or is damaged.

        A damaged subfolder is removed.

        Raises:
            OSError: The damaged subfolder cannot be removed.
        """
        if not os.path.lexists(path):
            return None
        try:
            folded = _load(path)
            touch(path)
            return folded
        except (OnnxFoldError, OSError) as error:
            reason = str(error)
        # Here, the exception does not exist any more. The exception kept the files mapped, and
        # Windows cannot remove mapped files.
        if os.path.lexists(path):  # otherwise another process has just removed it
            logger.warning("%s: removed, because the tensors cannot be read: %s", path, reason)
            files.end_unused_mappings()
            shutil.rmtree(path)
        return None

    def _write(self, path: str, computed: Folded) -> Folded:
        """Write tensors to a subfolder, and return them as mapped files.

        Returns:
            The mapped tensors. ``computed`` if the tensors are not stored, see `get`.
        """
        import onnx_ir as ir

        from onnxfold.ir import storage

        if not all(map(has_numbers, computed.values.values())):
            return computed
        tensors = [ir.tensor(array_of(value), name=name) for name, value in computed.values.items()]
        weights = [ir.Value(name=tensor.name, const_value=tensor) for tensor in tensors]
        graph = ir.Graph([], [], nodes=[], initializers=weights, name="folded")
        model = ir.Model(graph, ir_version=10)
        try:
            plan = storage.planned(model, external_data=True)
            if plan.size > self._max_bytes:
                return computed
            with files.scratch_folder("fold", parent=self.folder) as new:
                storage.save(model, os.path.join(new, _MODEL), plan=plan, fsync=False)
                Path(new, _DIGEST).write_text(hash_model(Path(new, _MODEL)), encoding="ascii")
                put(new, path, self._max_bytes)
                return _load(path, is_trusted=True)
        except (OSError, OnnxFoldError) as error:
            logger.warning("folded tensors are not stored: %s", error)
            return computed
        finally:
            # The model is part of a reference cycle, which would keep the tensors alive.
            graph.initializers.clear()


def _load(path: str, *, is_trusted: bool = False) -> Folded:
    """Map the tensors in a subfolder. Verify the hash of the files unless ``is_trusted``.

    Raises:
        ModelError: The files are damaged.
        OSError: A file cannot be read.
    """
    from onnxfold.ir import storage

    file = Path(path, _MODEL)
    if not is_trusted and Path(path, _DIGEST).read_bytes() != hash_model(file).encode():
        raise ModelError("the folded tensors are damaged", file=path)
    values = {}
    for name, value in storage.load(file).graph.initializers.items():
        assert value.const_value is not None
        values[name] = ort_value(value.const_value.numpy())
        if values[name].data_ptr() % 64:  # small tensors in the model file are not aligned
            values[name] = ort_copy(values[name])
    return Folded(values, sum(value.tensor_size_in_bytes() for value in values.values()))
