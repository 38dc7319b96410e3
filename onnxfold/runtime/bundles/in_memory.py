"""A split model that is not written: its parts are in memory, their weights where the source is."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold import files, storage
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import ENTRY_FILE, FOLD_FILE, Manifest
from onnxfold.runtime.bundles.opening import open_model, refer_to_files
from onnxfold.storage.layout import plan_model

if TYPE_CHECKING:
    import onnxruntime


class InMemory(Bundle):
    """What a bundle is on the disk, without a disk.

    Args:
        manifest: What it consists of.
        entry: The model that runs every time.
        fold: The model that makes the cached tensors; None if nothing is cached.

    Attributes:
        parts: The models by their names.
    """

    def __init__(self, manifest: Manifest, entry: ir.Model, fold: ir.Model | None) -> None:
        self.manifest = manifest
        self.parts = {ENTRY_FILE: entry} if fold is None else {ENTRY_FILE: entry, FOLD_FILE: fold}
        for model in self.parts.values():
            refer_to_files(model)  # other files may be there when it is opened
        self._lock = threading.Lock()  # a model that is being serialized is of use to nobody else

    @functools.cached_property
    def folder(self) -> Path:  # type: ignore[override]
        """A folder for kernels, which are files; it goes with this object."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(files.scratch_folder("session"))
            weakref.finalize(self, stack.pop_all().close)
        return Path(folder)

    @functools.cached_property
    def fold_hash(self) -> str:
        """SHA-256 of runtime_fold and its weights."""
        with self._lock:
            return _content_hash(self.parts[FOLD_FILE])

    def load(self, part: str) -> ir.Model:
        """Return a part as a model, to be changed."""
        with self._lock:
            return self.parts[part].clone()

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Return a session of onnxruntime on a part."""
        with self._lock:
            return open_model(self.parts[part], options, providers)


def _content_hash(model: ir.Model) -> str:
    """SHA-256 of a model and its weights, wherever they are."""
    plan = plan_model(model, lambda span: None)
    digest = hashlib.sha256()
    file: Any = SimpleNamespace(write=digest.update)
    described = plan.model("")
    for _, literal in described.literals:
        digest.update(literal)
    for place in (*described.tensors, *(plan.data.tensors if plan.data is not None else ())):
        place.tensor.tofile(file)
        span = storage.span_of(place.tensor)
        if span is not None:
            span.file.release(span.offset, span.length)
    return digest.hexdigest()
