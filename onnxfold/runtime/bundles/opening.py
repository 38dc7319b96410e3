"""Opening a model of which only the weights are in files: onnxruntime maps them where they are.

It is given the model without its weights, and for each of these a file and an offset: of the file
that it was read from, or of a scratch file for what was computed or is not aligned where it lies.
What onnxruntime uses as it is, it has in memory only as pages of those files.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxfold import files, storage
from onnxfold.errors import OnnxFoldError
from onnxfold.graphs import all_graphs
from onnxfold.onnxruntime_sessions import CPU, open_session
from onnxfold.pool.buffer import Buffer, Memory
from onnxfold.runtime.bundles.scratch import scratch_file
from onnxfold.runtime.bundles.session_options import data_below, with_data_below
from onnxfold.storage import MappedFile, SharedExternalTensor, Span, ViewTensor, span_of
from onnxfold.storage.layout import EXTERNAL_FROM, FilePlan, plan_model, sharer
from onnxfold.storage.writer import is_streamed

if TYPE_CHECKING:
    import onnxruntime

# onnxruntime refuses data outside of the folder that it is told: so that is the one of everything.
_ROOT = "/"

# onnxruntime allocates at multiples of this many bytes. What lies at other places of a file is
# copied to memory: there, sums in SIMD registers would be added up in another order, or slowly.
_ALIGNMENT = 64


def open_model(
    model: ir.Model, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    """A session on a model in memory; it needs neither the model nor a name of a file afterwards.

    A file that was replaced since the model was read is read through its mapping.

    Args:
        model: The model. No other thread may use it meanwhile.
        options: Session options; they are as they were afterwards.
        providers: Execution providers, as onnxruntime takes them.

    Raises:
        OnnxFoldError: There is no room for what was computed, or the model cannot be serialized.
        Exception: onnxruntime refuses the model, by one of many classes without a common base.
    """
    if options is not None and options.optimized_model_filepath:
        return _from_files(model, options, providers)  # what is written refers to data by name
    refer_to_files(model)
    try:
        return _by_reference(model, options, providers)
    except OnnxFoldError:
        raise
    except Exception:
        names = {p if isinstance(p, str) else p[0] for p in providers}
        if names == {*CPU} and _reads_anywhere():
            raise
    # A provider that reads files by itself, or an onnxruntime that wants them in one folder.
    return _from_files(model, options, providers)


def _by_reference(
    model: ir.Model, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    while True:
        places = _Places()
        plan = plan_model(model, places)
        data = plan.data
        with scratch_file(data) if data else contextlib.nullcontext("") as path:
            content = _content(plan.model(path.lstrip(_ROOT)))
            try:
                session = _open(content, options, providers)
            except Exception:
                if places.hold():
                    raise
            else:
                if places.hold():
                    _let_go(model, data, path)
                    return session
        # A file was replaced while onnxruntime opened it by its name; now it is known to be gone.


def _open(
    content: bytes, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    try:
        return open_session(content, with_data_below(_ROOT, options), providers)
    except Exception:  # onnxruntime raises many classes without a common base
        if options is None:
            raise
    with data_below(_ROOT, options):  # a copy has no libraries of custom ops
        return open_session(content, options, providers)


def _from_files(
    model: ir.Model, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    with files.scratch_folder("session") as folder:
        path = os.path.join(folder, "model.onnx")
        storage.save(model, path, fsync=False)
        return open_session(path, options, providers)


@functools.cache
def _reads_anywhere() -> bool:
    """Whether this onnxruntime takes data from a file at any place, on a model of one weight."""
    weight = ir.Value(name="w", const_value=ir.tensor(np.zeros(EXTERNAL_FROM, np.uint8), name="w"))
    node = ir.node("Identity", [weight])
    node.outputs[0].name = "y"
    graph = ir.Graph(
        [], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 13}, name="one"
    )
    try:
        _by_reference(ir.Model(graph, ir_version=7), None, CPU)
    except Exception:  # onnxruntime raises many classes without a common base
        return False
    return True


class _Places:
    """Tells under which name below the root onnxruntime finds what is mapped."""

    def __init__(self) -> None:
        self._location = sharer(_ROOT, "")
        self._files: dict[str, MappedFile] = {}

    def __call__(self, span: Span) -> str | None:
        if span.offset % _ALIGNMENT:
            return None
        location = self._location(span)
        if location is None:
            return None
        self._files[location] = span.file
        return location

    def hold(self) -> bool:
        """Whether all files are still where they were when their names were told."""
        return all(file.is_at(_ROOT + location) for location, file in self._files.items())


def refer_to_files(model: ir.Model) -> None:
    """Initializers that are bytes of a file become tensors of that file, as it is now."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, (ViewTensor, SharedExternalTensor)):
                continue
            # another shape of such a tensor, or one that looks for its file only when it is read
            if tensor is not None and (
                is_streamed(tensor) or isinstance(tensor, ir.ExternalTensor)
            ):
                span = span_of(tensor)
                if span is not None:
                    value.const_value = _at(span, tensor)


def _at(span: Span, tensor: ir.TensorProtocol) -> ViewTensor:
    shape = ir.Shape(tensor.shape.numpy())
    return ViewTensor(span, tensor.dtype, shape, name=tensor.name)


def _let_go(model: ir.Model, data: FilePlan | None, path: str) -> None:
    """Initializers that are in memory become tensors of the scratch file, which onnxruntime maps.

    So what the model was made of can be freed, and both have the same pages.
    """
    held = {id(p.tensor): p for p in data.tensors if _is_in_memory(p.tensor)} if data else {}
    if not held:
        return
    file = MappedFile.open(path)
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            place = held.get(id(value.const_value))
            if place is not None:
                span = Span(file, place.offset, place.length)
                value.const_value = _at(span, place.tensor)


def _is_in_memory(tensor: ir.TensorProtocol) -> bool:
    """Whether memory holds the elements, not a file, and not what they can be computed from."""
    if not is_streamed(tensor):
        return span_of(tensor) is None
    buffer = getattr(tensor, "buffer", None)
    if not isinstance(buffer, Buffer) or not buffer.is_known or buffer.region is None:
        return False
    return buffer.region.kind in (Memory.OWNED, Memory.FOREIGN)


def _content(plan: FilePlan) -> bytes:
    """The model as it would be in a file."""
    parts = dict(plan.literals)
    parts.update((place.offset, place.tensor.tobytes()) for place in plan.tensors)
    return b"".join(parts[offset] for offset in sorted(parts))
