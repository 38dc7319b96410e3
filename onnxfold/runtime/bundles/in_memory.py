"""A split model in memory, whose weights remain in the files of the source.

onnxruntime receives a model without large weights, and a file and an offset for each large weight.
The file is a file of the source, or a scratch file for computed or misaligned weights. onnxruntime
maps these files. Weights that onnxruntime uses unchanged take memory only as pages of the files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs
from onnxfold.ir.storage import MappedFile, SharedExternalTensor, Span, ViewTensor, span_of
from onnxfold.ir.storage.layout import FilePlan, SavePlan, plan_model, sharer
from onnxfold.ir.storage.writer import Writer, write_plan
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import ENTRY_FILE, FOLD_FILE, Manifest
from onnxfold.support import files, forks
from onnxfold.support.errors import ModelError, OnnxFoldError
from onnxfold.support.forks import cached_property
from onnxfold.support.onnxruntime_sessions import CPU, message_of, open_session, with_data_below

if TYPE_CHECKING:
    import onnxruntime

# onnxruntime rejects data outside of a given folder. The root folder contains all files.
_ROOT = "/"

# Alignment of onnxruntime's memory in bytes. Weights at other offsets of a file are copied to the
# scratch file. Otherwise, SIMD code would compute their sums in another order, or be slow.
_ALIGNMENT = 64

_BUILT_IN = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft")
"""The domains of onnxruntime's own ops. Custom ops have other domains, such as ai.onnx.contrib."""


class InMemoryBundle(Bundle):
    """A bundle whose parts are in memory. ``parts`` contains the models by the names of the parts.

    Args:
        manifest: The manifest.
        entry: The model that runs in every call.
        fold: The model that computes the cached tensors. None if there are no cached tensors.
        source: The path of the model that was split. None for a model in memory.
        folder: The folder for compiled kernels. None means a temporary folder, which is removed
            when this object is destroyed or Python exits.
    """

    def __init__(
        self,
        manifest: Manifest,
        entry: ir.Model,
        fold: ir.Model | None,
        source: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.manifest = manifest
        self._kernel_folder = folder
        self._temporary_folder = forks.ProcessLocal[Path]()
        self.source = source
        self.parts = {ENTRY_FILE: entry} if fold is None else {ENTRY_FILE: entry, FOLD_FILE: fold}
        for graph in itertools.chain.from_iterable(map(all_graphs, self.parts.values())):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None or isinstance(tensor, (ViewTensor, SharedExternalTensor)):
                    continue
                # The file may be replaced before the part is opened. A tensor that was reshaped, or
                # that opens its file when it is read, therefore becomes a view of the mapped file.
                span = span_of(tensor)
                if span is not None:
                    value.const_value = _at(span, tensor)
        self._lock = forks.Lock()  # a model cannot be used while it is serialized

    name = "in memory"
    compiles_ahead = True

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """The folder for compiled kernels. A temporary folder is created at the first access."""
        return self._kernel_folder or self._temporary_folder.get(
            lambda: Path(files.folder_of(self, "session"))
        )

    @cached_property
    def fold_hash(self) -> str:
        """SHA-256 of runtime_fold and its weights, in hexadecimal."""
        return self._hash(lambda span: None)

    @cached_property
    def fold_key(self) -> str:
        """A hash of runtime_fold and its weights that is valid in this process.

        Large weights in unchanged files are identified by file and offset, and are not read.
        """
        identity = functools.cache(MappedFile.identity)
        return self._hash(lambda span: identity(span.file))

    def _hash(self, share: Callable[[Span], str | None]) -> str:
        """Return the SHA-256 of runtime_fold.

        For each large weight in a file, the hash includes the key that ``share`` returns and the
        offset in the file. If ``share`` returns None, and for all other weights, the hash includes
        the elements.
        """
        with self._lock:
            plan = plan_model(self.parts[FOLD_FILE], share)
            digest = hashlib.sha256(_content(plan))
            for place in plan.data.tensors if plan.data is not None else ():
                tensor: Any = place.tensor
                tensor.tofile(SimpleNamespace(write=digest.update))
                span = span_of(tensor)
                if span is not None:
                    span.file.release(span.offset, span.length)
        return digest.hexdigest()

    def load(self, part: str) -> ir.Model:
        """Return a copy of a part. The caller may change the copy."""
        with self._lock:
            return self.parts[part].clone()

    @contextlib.contextmanager
    def serialized(self, part: str) -> Iterator[bytes]:
        """Yield a part in the format of `deserialized`, for another process.

        Large weights in files remain in these files. Other large weights are written to a temporary
        file, which is removed at the end of the context.
        """
        with contextlib.ExitStack() as stack:
            with self._lock:
                plan = plan_model(self.parts[part], sharer(_ROOT, ""))
                path = stack.enter_context(_scratch_file(plan.data)) if plan.data else ""
                content = _content(plan, path)
            yield content

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Open an onnxruntime session on a part.

        Raises:
            ModelError: onnxruntime cannot open the part.
            OnnxFoldError: A temporary file cannot be written.
            TypeError: An argument is invalid.
            ValueError: An argument is invalid.
        """
        try:
            with self._lock:
                return open_model(self.parts[part], options, providers)
        except (OnnxFoldError, TypeError, ValueError):  # the latter two are for invalid arguments
            raise
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            name = part.removesuffix(".onnx")
            reason = f"onnxruntime cannot open the part {name}: {message_of(error)}"
            original = self._failure_of_source(options, providers)
            if original is not None:
                reason = f"onnxruntime cannot open the original model either: {original}"
            raise ModelError(reason, file=self.source) from error

    def _failure_of_source(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> str | None:
        """Return the reason why onnxruntime cannot open the original model.

        The result is None if onnxruntime can open the model, or if its path is unknown.
        """
        if self.source is None:
            return None
        try:
            open_session(self.source, options, providers)
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            return message_of(error)
        return None


def deserialized(content: bytes) -> ir.Model:
    """Return the model whose bytes `InMemoryBundle.serialized` yielded.

    The weights must be read before the context of `InMemoryBundle.serialized` ends.
    """
    import onnx

    model = ir.from_proto(onnx.load_model_from_string(content))
    ir.external_data.set_base_dir(model.graph, _ROOT)
    return model


def open_model(
    model: ir.Model, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    """Open a session on a model in memory. The session requires neither the model nor its files.

    If a file was replaced after the model was read, the old file is read through its mapping.
    Initializers in memory may become views of a temporary file, which the session also maps. No
    other thread may use the model at the same time.

    Raises:
        OnnxFoldError: A temporary file cannot be written.
        Exception: onnxruntime cannot open the model. Its exceptions have no common base class.
    """
    if options is None or not options.optimized_model_filepath:
        try:
            return _by_reference(model, options, providers)
        except OnnxFoldError:
            raise
        except OSError as error:
            raise files.os_error(error, "temporary files") from error
        except Exception:
            names = {p if isinstance(p, str) else p[0] for p in providers}
            has_library = options is not None and has_custom_ops(model)
            if names == {*CPU} and not has_library:
                raise
    # onnxruntime needs a model file in three cases. If onnxruntime writes the optimized model, that
    # model would refer to the weights by name. A provider other than the CPU's may open files
    # itself. `with_data_below` copies the options, and the copy lacks the libraries of custom ops.
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
        content = _content(plan, path)
        session = None
        failure = None
        try:
            session = open_session(content, with_data_below(_ROOT, options), providers)
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            failure = error
        if not all(file.is_at(_ROOT + location) for location, file in used.items()):
            # A file was replaced while onnxruntime opened the model. The next attempt reads the old
            # file, which is still mapped.
            return _by_reference(model, options, providers)
        if failure is not None:
            raise failure
        # Initializers in memory become views of the scratch file, which the session also maps.
        places = {id(place.tensor): place for place in (plan.data.tensors if plan.data else ())}
        for graph in all_graphs(model) if places else ():
            for value in graph.initializers.values():
                place = places.get(id(value.const_value))
                if place is not None and span_of(place.tensor) is None:
                    span = Span(MappedFile.open(path), place.offset, place.length)
                    value.const_value = _at(span, place.tensor)
        return session


@contextlib.contextmanager
def _scratch_file(plan: FilePlan) -> Iterator[str]:
    """Write a temporary data file, and yield its real path. The file is removed at the end.

    onnxruntime keeps the removed file mapped for weights that it uses unchanged. It releases the
    pages of weights that it rearranges.

    Raises:
        OnnxFoldError: The file cannot be written.
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
    """Return whether a model has ops that neither onnxruntime nor the model itself defines.

    onnxruntime defines the ops in the domains `_BUILT_IN`. A model defines ops by functions.
    """
    return any(
        node.domain not in _BUILT_IN
        for graph in all_graphs(model)
        for node in graph
        if node.op_identifier() not in model.functions
    )


def _at(span: Span, tensor: ir.TensorProtocol) -> ViewTensor:
    shape = ir.Shape(tensor.shape.numpy())
    return ViewTensor(span, tensor.dtype, shape, name=tensor.name)


def _content(plan: SavePlan, data_path: str = "") -> bytes:
    """Return the bytes of the model file. It refers to the data file at ``data_path``, if any."""
    file = plan.model(data_path.lstrip(_ROOT))
    parts = dict(file.literals)
    for place in file.tensors:
        parts[place.offset] = place.tensor.tobytes()
    return b"".join(map(parts.__getitem__, sorted(parts)))
