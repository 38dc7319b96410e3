"""A split model that is not written: its parts are in memory, their weights where the source is."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold import storage
from onnxfold.runtime.backends import check_dump, check_name, compile_kernels, dump_stages
from onnxfold.runtime.bundle import Manifest
from onnxfold.runtime.opening import open_model, plan_of, refer_to_files
from onnxfold.runtime.split import ModelLike, Parts, opened, split_model

if TYPE_CHECKING:
    import onnxruntime


class SplitModel:
    """What a bundle is on the disk, without a disk: it lives as long as a session on it.

    Threads may use it at the same time.

    Attributes:
        manifest: What it consists of.
    """

    def __init__(self, parts: Parts) -> None:
        self.manifest: Manifest = parts.manifest
        self._entry = parts.entry
        self._fold = parts.fold
        for model in (parts.entry, parts.fold):
            if model is not None:
                refer_to_files(model)  # other files may be there when it is opened
        self._lock = threading.Lock()  # a model that is being serialized is of use to nobody else

    @functools.cached_property
    def folder(self) -> Path:
        """A folder for kernels, which are files; it goes with this object."""
        folder = tempfile.TemporaryDirectory(prefix="onnxfold-session-")
        weakref.finalize(self, folder.cleanup)
        return Path(folder.name)

    def load_entry(self) -> ir.Model:
        """Entry, to be changed."""
        with self._lock:
            return self._entry.clone()

    def load_runtime_fold(self) -> ir.Model:
        """Runtime_fold, to be changed; there is one if the manifest has groups."""
        assert self._fold is not None
        with self._lock:
            return self._fold.clone()

    def open_entry(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """A session of onnxruntime on entry."""
        with self._lock:
            return open_model(self._entry, options, providers)

    def open_runtime_fold(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """A session of onnxruntime on runtime_fold."""
        assert self._fold is not None
        with self._lock:
            return open_model(self._fold, options, providers)

    @functools.cached_property
    def _hash(self) -> str:
        assert self._fold is not None
        with self._lock:
            return content_hash(self._fold)

    def fold_hash(self) -> str:
        """What cached tensors are known by: it tells one runtime_fold from another."""
        return self._hash


def split_in_memory(
    source: ModelLike,
    *,
    runtime_constants: Iterable[str] = (),
    backend: str = "auto",
    compile_seconds: float = 120.0,
    dump_ir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> SplitModel:
    """Split a model as `split` does, and write nothing but kernels.

    Raises:
        UsageError: An argument cannot be used as given.
        ModelError: The source is not valid.
    """
    check_name(backend)
    if dump_ir is not None:
        check_dump(backend)
    parts = split_model(opened(source), runtime_constants=runtime_constants, **options)
    made = SplitModel(parts)
    made.manifest.kernels = compile_kernels(made, backend, seconds=compile_seconds)
    if dump_ir is not None:
        dump_stages(made, backend, Path(dump_ir), seconds=compile_seconds)
    return made


def content_hash(model: ir.Model) -> str:
    """SHA-256 of a model and its weights, wherever they are."""
    plan = plan_of(model, lambda span: None)
    digest = _Digest()
    described = plan.model("")
    for _, literal in described.literals:
        digest.write(literal)
    for place in (*described.tensors, *(plan.data.tensors if plan.data is not None else ())):
        place.tensor.tofile(digest)
        span = storage.span_of(place.tensor)
        if span is not None:
            span.file.release(span.offset, span.length)
    return digest.sha256.hexdigest()


class _Digest:
    """What a tensor is written to, to be hashed."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Hash more bytes."""
        self.sha256.update(data)
        return memoryview(data).nbytes
