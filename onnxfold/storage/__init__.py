"""Reading and writing models: zero-copy, streamed, atomic. The lowest layer of the package."""

from onnxfold.storage.load import EXTERNAL_KEY, SOURCE_KEY, from_proto, load
from onnxfold.storage.mapped import MappedFile, Span
from onnxfold.storage.streaming import StreamedTensor, Tile
from onnxfold.storage.tensors import (
    FileTensor,
    SharedExternalTensor,
    SparseTensor,
    ViewTensor,
    span_of,
    stored_size,
)

__all__ = [
    "EXTERNAL_KEY",
    "SOURCE_KEY",
    "FileTensor",
    "MappedFile",
    "SharedExternalTensor",
    "Span",
    "SparseTensor",
    "StreamedTensor",
    "Tile",
    "ViewTensor",
    "from_proto",
    "load",
    "span_of",
    "stored_size",
]
