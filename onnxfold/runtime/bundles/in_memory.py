"""A split model that is not written: its parts are in memory, their weights where the source is.

onnxruntime maps the weights in their files. It is given a model without its weights, and for each
of these a file and an offset: of the file that it was read from, or of a scratch file for what was
computed or is not aligned where it lies. What onnxruntime uses as it is, it has in memory only as
pages of those files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold import files, storage
from onnxfold.errors import OnnxFoldError
from onnxfold.graphs import all_graphs
from onnxfold.onnxruntime_sessions import CPU, open_session, with_data_below
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import ENTRY_FILE, FOLD_FILE, Manifest
from onnxfold.storage import MappedFile, SharedExternalTensor, Span, ViewTensor, span_of
from onnxfold.storage.commit import write_plan
from onnxfold.storage.layout import FilePlan, plan_model, sharer
from onnxfold.storage.writer import Writer

if TYPE_CHECKING:
    import onnxruntime

# onnxruntime refuses data outside of the folder that it is told: so that is the one of everything.
_ROOT = "/"

# onnxruntime allocates at multiples of this many bytes. What lies at other places of a file is
# copied to memory: there, sums in SIMD registers would be added up in another order, or slowly.
_ALIGNMENT = 64

_BUILT_IN = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft")
"""The domains of onnxruntime's own ops; custom ops have others, ai.onnx.contrib among them."""


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
            _refer_to_files(model)  # other files may be there when it is opened
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
            plan = plan_model(self.parts[FOLD_FILE], lambda span: None)
            digest = hashlib.sha256(_content(plan.model("")))
            for place in plan.data.tensors if plan.data is not None else ():
                tensor: Any = place.tensor
                tensor.tofile(SimpleNamespace(write=digest.update))
                span = span_of(tensor)
                if span is not None:
                    span.file.release(span.offset, span.length)
        return digest.hexdigest()

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


def open_model(
    model: ir.Model, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    """Open a session on a model in memory; it needs neither the model nor its files afterwards.

    A file that was replaced since the model was read is read through its mapping.

    Args:
        model: The model. No other thread may use it meanwhile.
        options: Session options; unchanged.
        providers: Execution providers, as onnxruntime takes them.

    Raises:
        OnnxFoldError: There is no room for computed weights, or the model cannot be serialized.
        Exception: onnxruntime refuses the model, by one of many classes without a common base.
    """
    if options is None or not options.optimized_model_filepath:
        try:
            return _by_reference(model, options, providers)
        except OnnxFoldError:
            raise
        except Exception:
            names = {p if isinstance(p, str) else p[0] for p in providers}
            has_library = options is not None and has_custom_ops(model)
            if names == {*CPU} and not has_library:
                raise
    # A file that onnxruntime writes would refer to the weights by name; a provider may read files
    # by itself; and a copy of the options has no libraries of custom ops.
    with files.scratch_folder("session") as folder:
        path = os.path.join(folder, "model.onnx")
        storage.save(model, path, fsync=False)
        return open_session(path, options, providers)


def _by_reference(
    model: ir.Model, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    used: dict[str, MappedFile] = {}
    locate = sharer(_ROOT, "")

    def share(span: Span) -> str | None:
        location = locate(span) if span.offset % _ALIGNMENT == 0 else None
        if location is not None:
            used[location] = span.file
        return location

    plan = plan_model(model, share)
    with _scratch_file(plan.data) if plan.data else contextlib.nullcontext("") as path:
        content = _content(plan.model(path.lstrip(_ROOT)))
        session = failure = None
        try:
            session = open_session(content, with_data_below(_ROOT, options), providers)
        except Exception as error:  # onnxruntime raises many classes without a common base
            failure = error
        if not all(file.is_at(_ROOT + location) for location, file in used.items()):
            # a file was replaced while onnxruntime opened it by name; it is still mapped
            return _by_reference(model, options, providers)
        if failure is not None:
            raise failure
        _let_go(model, plan.data, path)
        return session


@contextlib.contextmanager
def _scratch_file(plan: FilePlan) -> Iterator[str]:
    """Write a temporary file, which is removed at the end; return its real path.

    The system keeps the content as long as onnxruntime has it mapped: it maps the weights that it
    uses as they are, and releases those that it has rearranged.

    Raises:
        OnnxFoldError: There is no room for it.
    """
    with files.scratch_folder("weights") as folder:
        path = os.path.join(folder, "w")
        try:
            with open(path, "xb") as file:
                write_plan(file.fileno(), plan, Writer(2, 0, None))
        except OSError as error:
            raise files.os_error(error, folder) from error
        yield path


def has_custom_ops(model: ir.Model) -> bool:
    """Return whether the model has ops that are neither onnxruntime's own nor its functions."""
    return any(
        node.domain not in _BUILT_IN
        for graph in all_graphs(model)
        for node in graph
        if node.op_identifier() not in model.functions
    )


def _refer_to_files(model: ir.Model) -> None:
    """Replace initializers that are bytes of a file by tensors of that file, as it is now."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and not isinstance(tensor, (ViewTensor, SharedExternalTensor)):
                # another shape of such a tensor, or one that finds its file when it is read
                span = span_of(tensor)
                if span is not None:
                    value.const_value = _at(span, tensor)


def _at(span: Span, tensor: ir.TensorProtocol) -> ViewTensor:
    shape = ir.Shape(tensor.shape.numpy())
    return ViewTensor(span, tensor.dtype, shape, name=tensor.name)


def _let_go(model: ir.Model, data: FilePlan | None, path: str) -> None:
    """Replace initializers in memory by tensors of the scratch file, which onnxruntime maps.

    So what the model was made of can be freed, and both have the same pages.
    """
    places = {id(place.tensor): place for place in (data.tensors if data else ())}
    for graph in all_graphs(model) if places else ():
        for value in graph.initializers.values():
            place = places.get(id(value.const_value))
            if place is not None and span_of(place.tensor) is None:
                span = Span(MappedFile.open(path), place.offset, place.length)
                value.const_value = _at(span, place.tensor)


def _content(plan: FilePlan) -> bytes:
    """Return the model as it would be in a file."""
    parts = dict(plan.literals)
    parts.update((place.offset, place.tensor.tobytes()) for place in plan.tensors)
    return b"".join(parts[offset] for offset in sorted(parts))
