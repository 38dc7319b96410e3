"""Writing of a loaded model with changes in its protobuf message. All other content is copied.

`save` writes an ``ir.Model``. To create this model, `decode` converts sparse tensors, sorts nodes
and discards training information. A `VerbatimModel` keeps them, because it writes the original
message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

from onnxfold.ir.storage.checks import messages_in, parse
from onnxfold.ir.storage.layout import (
    DATA_NAME_PLACEHOLDER,
    DataPlan,
    FilePlan,
    SavePlan,
    sharer,
    with_holes,
)
from onnxfold.ir.storage.load import EXTERNAL_KEY, FILES_KEY, SOURCE_KEY, ExternalData, skeleton_of
from onnxfold.ir.storage.save import SaveReport, real_target, save
from onnxfold.ir.storage.tensors import SharedExternalTensor, Span, ViewTensor
from onnxfold.ir.storage.wire import Placeholders
from onnxfold.support.errors import about

_POSITION_KEYS = ("location", "offset", "length", "checksum")
"""Keys of external data whose values depend on the data file."""


class VerbatimModel:
    """The message of a model file, without the bytes of its large tensors.

    Attributes:
        proto: The message. The caller may change it. Placeholders replace large ``raw_data``.
    """

    def __init__(self, model: ir.Model) -> None:
        """Read the message of a model that was loaded by `load`."""
        self._model = model
        self._placeholders = Placeholders()
        self.proto = parse(skeleton_of(model.meta[FILES_KEY][0], self._placeholders))
        spans: list[Span] = self._placeholders.objects
        self._placeholders.objects = [(_view_of(span), span.length) for span in spans]

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        share_weights: bool = False,
        fsync: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> SaveReport:
        """Write the message and the bytes of its tensors; see `storage.save` for the arguments.

        If ``path`` is the source of the model, the written model shares the existing data files.
        """
        target = real_target(os.fsdecode(os.fspath(path)))
        is_replaced = target == os.path.realpath(self._model.meta[SOURCE_KEY])
        is_shared = share_weights or is_replaced
        share = sharer(os.path.dirname(target), target) if is_shared else (lambda span: None)
        with about(target):
            plan = self._plan(share)
        return save(self._model, path, plan=plan, fsync=fsync, progress=progress)

    def _plan(self, share: Callable[[Span], str | None]) -> SavePlan:
        """Plan the files. ``share`` returns the location of a shared span, or None."""
        data = DataPlan()
        locations: set[str] = set()
        shared: set[tuple[str, int, int]] = set()
        location_entries: list[onnx.StringStringEntryProto] = []
        raw_tensors: list[ir.TensorProtocol] = [view for view, _ in self._placeholders.objects]
        for proto, tensor in self._external_tensors():
            span = tensor.span
            if span is None:
                _store_inside(proto)
                continue
            raw_tensors.append(tensor)
            location = share(span)
            if location is not None:
                _set_location(proto, location)
                locations.add(location)
                shared.add((location, span.offset, span.length))
                continue
            offset = data.add(tensor, span.length, span)
            location_entries.append(_set_position(proto, offset, span.length))

        def model_plan(location: str) -> FilePlan:
            for entry in location_entries:
                entry.value = location
            return with_holes(self.proto, self._placeholders)

        model_file = model_plan(DATA_NAME_PLACEHOLDER)
        write = model_plan if location_entries else lambda location: model_file
        bytes_shared = sum(length for _, _, length in shared)
        size = model_file.size + data.file.size
        return SavePlan(write, data.planned(), bytes_shared, locations, size, raw_tensors)

    def _external_tensors(self) -> Iterator[tuple[onnx.TensorProto, SharedExternalTensor]]:
        """Yield the message of each external tensor with the located tensor."""
        if not (self._model.meta[EXTERNAL_KEY] or self.proto.training_info):
            return  # visiting all messages of a large graph takes seconds
        files = ExternalData(self._model.meta[SOURCE_KEY])
        for message in messages_in(self.proto):
            if not isinstance(message, onnx.TensorProto):
                continue
            if message.data_location == onnx.TensorProto.EXTERNAL:
                tensor = ir.serde.deserialize_tensor(message)
                assert isinstance(tensor, ir.ExternalTensor)
                yield message, files.tensor(tensor, message.name)


def _view_of(span: Span) -> ViewTensor:
    """Return a tensor that views the bytes at a span as a vector of uint8."""
    return ViewTensor(span, ir.DataType.UINT8, ir.Shape([span.length]))


def _store_inside(proto: onnx.TensorProto) -> None:
    """Store a tensor without elements in the model.

    Its data file may not be written, because the file may have no other tensors.
    """
    proto.ClearField("data_location")
    del proto.external_data[:]
    proto.raw_data = b""


def _set_location(proto: onnx.TensorProto, location: str) -> None:
    """Change the location of external data unless it is equivalent to ``location``."""
    for entry in proto.external_data:
        if entry.key == "location" and os.path.normpath(entry.value) != os.path.normpath(location):
            entry.value = location


def _set_position(proto: onnx.TensorProto, offset: int, length: int) -> onnx.StringStringEntryProto:
    """Set the offset and length of external data, and return the new entry for the location.

    The value of this entry is still empty. An existing checksum is removed.
    """
    kept = [
        (entry.key, entry.value) for entry in proto.external_data if entry.key not in _POSITION_KEYS
    ]
    del proto.external_data[:]
    location: onnx.StringStringEntryProto = proto.external_data.add(key="location")
    for key, value in (("offset", str(offset)), ("length", str(length)), *kept):
        proto.external_data.add(key=key, value=value)
    return location
