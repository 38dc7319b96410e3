"""Files of models: reading without copies of large tensors, and atomic, streamed writing."""

from onnxfold.ir.storage.decode import LIFTED_KEY, losses_allowed
from onnxfold.ir.storage.encode import TYPE_KEY, to_proto
from onnxfold.ir.storage.layout import SavePlan, model_bytes, planned
from onnxfold.ir.storage.load import (
    EXTERNAL_KEY,
    ModelLike,
    ModelT,
    ONNXProgram,
    PathLike,
    explained,
    from_proto,
    load,
    model_in,
    opened,
    path_of,
    reading_from,
)
from onnxfold.ir.storage.opsets import import_onnx_opset, onnx_opset
from onnxfold.ir.storage.save import check_destination, save
from onnxfold.ir.storage.tensors import (
    MappedFile,
    SharedExternalTensor,
    Span,
    ViewTensor,
    data_bytes,
    initializers_of,
    sizes_of,
    span_of,
    stored_or_default,
    stored_tensor,
)
from onnxfold.ir.storage.verbatim import VerbatimModel
from onnxfold.ir.storage.writer import Tile, write_at, write_tiles

__all__ = [
    "EXTERNAL_KEY",
    "LIFTED_KEY",
    "MappedFile",
    "ModelLike",
    "ModelT",
    "PathLike",
    "TYPE_KEY",
    "ONNXProgram",
    "SavePlan",
    "SharedExternalTensor",
    "Span",
    "Tile",
    "VerbatimModel",
    "ViewTensor",
    "check_destination",
    "data_bytes",
    "explained",
    "from_proto",
    "import_onnx_opset",
    "initializers_of",
    "load",
    "losses_allowed",
    "model_bytes",
    "model_in",
    "onnx_opset",
    "opened",
    "path_of",
    "planned",
    "reading_from",
    "save",
    "sizes_of",
    "span_of",
    "stored_or_default",
    "stored_tensor",
    "to_proto",
    "write_at",
    "write_tiles",
]
