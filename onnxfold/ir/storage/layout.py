"""The layout of the files of a model, planned from types and shapes before values are computed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.ir.onnx_ir_private import is_a
from onnxfold.ir.storage import wire
from onnxfold.ir.storage.encode import to_proto
from onnxfold.ir.storage.load import BYTES_KEY, EXTERNAL_KEY, is_within
from onnxfold.ir.storage.tensors import (
    MappedFile,
    Span,
    data_bytes,
    is_streamed,
    sizes_of,
    span_of,
    tensors_of,
)
from onnxfold.ir.storage.wire import Hole, Placeholders
from onnxfold.support.errors import UsageError
from onnxfold.support.files import is_text

# Protobuf messages, and therefore .onnx files, are limited to 2 GiB.
MAX_MODEL = (1 << 31) - 1

# In a single file, tensors of at least this many bytes are written without the protobuf library.
INLINE_BELOW = 4096
# With external data, initializers of at least this many raw bytes are external. Smaller ones may be
# shapes, axes and scales, which shape inference needs in the model.
EXTERNAL_FROM = 1024

# Large tensors start at a page, so that a reader can map each of them separately.
_LARGE_ALIGNMENT = 4096
_LARGE_FROM = 1 << 20
_SMALL_ALIGNMENT = 64


@dataclass
class FilePlan:
    """The literal bytes and the tensors of a file, with their offsets.

    ``size`` is the length of the file in bytes.
    """

    size: int = 0
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    tensors: list[Hole] = field(default_factory=list)


class DataPlan:
    """The layout of a data file. Tensors with the same span of an old file share their bytes."""

    def __init__(self) -> None:
        self.file = FilePlan()
        self._offsets: dict[Any, int] = {}

    def add(self, tensor: ir.TensorProtocol, length: int, span: Span | None) -> int:
        """Add a tensor unless its bytes were added before, and return their offset in bytes.

        ``span`` is the position of the bytes in an old file; None if they are not in a file.
        """
        key = (span.file.key, span.offset, span.length) if span else id(tensor)
        if key not in self._offsets:
            alignment = _LARGE_ALIGNMENT if length >= _LARGE_FROM else _SMALL_ALIGNMENT
            offset = -(-self.file.size // alignment) * alignment
            self._offsets[key] = offset
            self.file.tensors.append(Hole(tensor, length, offset))
            self.file.size = offset + length
        return self._offsets[key]

    def planned(self) -> FilePlan | None:
        """Return the plan of the file; None if the file has no tensors."""
        return self.file if self.file.tensors else None


DATA_NAME_PLACEHOLDER = "model.onnx.data"
"""Placeholder for the name of the data file, which is unknown when a model is planned."""


@dataclass
class SavePlan:
    """The layout of a model to be written.

    Attributes:
        model: Returns the plan of the .onnx file for a name of the data file.
        data: The plan of the data file; None if no data file is written.
        shared: Bytes of the tensors that remain in existing files.
        locations: Locations of these existing files, relative to the folder of the model.
        size: Bytes of the files to write, without existing files. The number is exact if the name
            of the data file is as long as the placeholder.
        raw_tensors: The tensors whose bytes protobuf does not serialize: the planned tensors of
            both files, and the tensors that remain in existing files. All tensors with bytes in
            files are included.
    """

    model: Callable[[str], FilePlan]
    data: FilePlan | None
    shared: int
    locations: set[str]
    size: int
    raw_tensors: list[ir.TensorProtocol]


def plan_model(model: ir.Model, share: Callable[[Span], str | None] | None = None) -> SavePlan:
    """Plan the files of a model: a single .onnx file, or with ``share``, also a data file.

    ``share`` returns the location by which the new model may refer to a span of an existing file.
    It returns None for a span that is written to the data file.

    Raises:
        UsageError: The .onnx file would exceed 2 GiB.
        ModelError: The model cannot be serialized.
    """
    placeholders = Placeholders()
    data = DataPlan()
    shared = 0
    locations: set[str] = set()
    shared_spans: set[tuple[str, int, int]] = set()
    location_entries: list[Any] = []
    raw_tensors: list[ir.TensorProtocol] = []

    def locate(tensor: ir.TensorProtocol, is_attribute: bool, proto: onnx.TensorProto) -> bool:
        nonlocal shared
        external = is_a(tensor, ir.ExternalTensor)
        length = data_bytes(tensor.dtype, sizes_of(tensor))
        min_bytes = INLINE_BELOW if share is None else EXTERNAL_FROM
        # typed fields such as ``int64_data`` are kept, because small numbers take one byte in them
        if is_a(tensor, ir.TensorProtoTensor):
            is_raw = bool(tensor.raw.HasField("raw_data"))
        else:
            is_raw = tensor.dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
        if not external and (length < min_bytes or not is_raw):
            return False
        raw_tensors.append(tensor)
        # Small external tensors become internal, because shape inference needs them. Internal
        # attributes remain internal, because onnxruntime does not always read attributes from a
        # data file.
        if share is None or (is_attribute and not external) or length < EXTERNAL_FROM:
            proto.raw_data = placeholders.add((tensor, length))
            return True
        span = None if is_streamed(tensor) else span_of(tensor)
        location = share(span) if span is not None else None
        if span is not None and location is not None:
            offset = span.offset
            if (location, offset, length) not in shared_spans:
                shared_spans.add((location, offset, length))
                shared += length
            locations.add(location)
        else:
            offset = data.add(tensor, length, span)
        proto.data_location = onnx.TensorProto.EXTERNAL
        entry = proto.external_data.add(key="location", value=location or "")
        if location is None:
            location_entries.append(entry)
        proto.external_data.add(key="offset", value=str(offset))
        proto.external_data.add(key="length", value=str(length))
        return True

    proto = to_proto(model, locate)

    def model_plan(location: str) -> FilePlan:
        for entry in location_entries:
            entry.value = location
        return with_holes(proto, placeholders)

    model_file = model_plan(DATA_NAME_PLACEHOLDER)
    write = model_plan if location_entries else lambda location: model_file
    size = model_file.size + data.file.size
    return SavePlan(write, data.planned(), shared, locations, size, raw_tensors)


def model_bytes(model: ir.Model) -> int:
    """Return the size of a model in bytes.

    The size is that of the files or the message from which the model was loaded. For any other
    model, it is the size of the files that would be written.
    """
    loaded_bytes = model.meta.get(BYTES_KEY)
    return planned(model).size if loaded_bytes is None else int(loaded_bytes)


def planned(
    model: ir.Model,
    external_data: bool | str | None = None,
    share: Callable[[Span], str | None] | None = None,
) -> SavePlan:
    """Plan the files of ``model``; see `save` for ``external_data`` and `plan_model` for ``share``.

    ``share`` implies external data. By default, the layout is that of the source. A model that
    exceeds 2 GiB gets external data unless ``external_data`` is False.

    Raises:
        UsageError: The .onnx file would exceed 2 GiB.
        ModelError: The model cannot be serialized.
    """
    external = bool(external_data) or share is not None
    if external_data is None and not external:
        was_external = model.meta.get(EXTERNAL_KEY)
        if was_external is None:  # the model was not loaded by `load`
            was_external = any(is_a(tensor, ir.ExternalTensor) for tensor in tensors_of(model))
        external = bool(was_external)
    if not external:
        try:
            return plan_model(model)
        except UsageError:  # too large for a single file
            if external_data is False:
                raise
    return plan_model(model, share or (lambda span: None))


def sharer(folder: str, target: str) -> Callable[[Span], str | None]:
    """Return a function that returns the location of a span's file relative to ``folder``, or None.

    The result is None if a model at ``target`` cannot share the file. A shared file must be in
    ``folder`` or a subfolder, must not have changed since it was mapped, and must have a name in
    UTF-8. The file at ``target`` is not shared, because the save replaces it.
    """

    @functools.cache
    def location(file: MappedFile) -> str | None:
        path = os.path.realpath(file.path)
        if not is_within(path, folder) or not file.is_at(path) or path == target:
            return None
        name = Path(os.path.relpath(path, folder)).as_posix()
        return name if is_text(name) else None

    return lambda span: location(span.file)


def with_holes(proto: onnx.ModelProto, placeholders: Placeholders) -> FilePlan:
    """Serialize ``proto`` with gaps for the tensors whose bytes are placeholders.

    Raises:
        UsageError: The file would exceed 2 GiB.
    """
    try:
        data: bytes = proto.SerializeToString()
    except Exception as error:  # upb raises EncodeError or ValueError above 2 GiB
        raise UsageError(f"the model cannot be serialized: {error}") from None
    token = placeholders.token
    marks = list[int]()
    position = -1
    while (position := data.find(token, position + 1)) >= 0:
        marks.append(position)
    plan = FilePlan()

    def replace(offset: int, length: int) -> Hole | None:
        content = placeholders.get(data[offset : offset + length])
        return None if content is None else Hole(*content)

    pieces, plan.size = wire.rewrite(data, len(token), replace, marks=marks)
    if plan.size > MAX_MODEL:
        raise UsageError(
            f"the model takes {plan.size} bytes in one file, more than the 2 GiB that the format "
            "allows; use external data"
        )
    offset = 0
    literal = list[wire.Piece]()
    for piece in pieces:
        if not isinstance(piece, Hole):
            literal.append(piece)
            continue
        content = wire.join(data, literal)
        plan.literals.append((offset, content))
        piece.offset = offset + len(content)
        plan.tensors.append(piece)
        offset = piece.offset + piece.length
        literal = []
    plan.literals.append((offset, wire.join(data, literal)))
    return plan
