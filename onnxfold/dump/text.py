"""A model as ONNX text without large tensors."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxfold import storage
from onnxfold.errors import printable
from onnxfold.graphs import all_graphs, type_text
from onnxfold.onnx_ir_private import is_a
from onnxfold.pool import BufferTensor
from onnxfold.storage.encode import to_proto

# Elements of tensors up to this many bytes are written.
_SMALL = 128


def text_of(model: ir.Model) -> str:
    """Return the model as onnx prints it. Of larger tensors there are type, shape and bytes only.

    No large tensor is read, and nothing is computed that is postponed.

    Raises:
        ModelError: The model cannot be expressed.
    """
    try:
        return str(onnx.printer.to_text(to_proto(model, _leave_out)))
    except UnicodeDecodeError as error:  # texts in attributes may be any bytes
        return error.object.decode("utf-8", "backslashreplace")


def _leave_out(tensor: ir.TensorProtocol, is_attribute: bool, proto: onnx.TensorProto) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False  # it is in memory, and has no bytes of its own
    nbytes = storage.data_bytes(tensor.dtype, tensor.shape)
    is_known = not is_a(tensor, BufferTensor) or tensor.buffer.is_known
    if nbytes <= _SMALL and is_known:
        return False
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.external_data.add(key="left_out", value=f"{nbytes} bytes")
    return True


def lines_of(model: ir.Model, text: str) -> list[str]:
    """Weights, then the lines of the model's text; onnx prints all weights in one line."""
    weights = sorted(
        f"weight {value.name} {type_text(value)}"
        for graph in all_graphs(model)
        for value in graph.initializers.values()
    )
    lines = (line for line in text.split("\n") if not line.lstrip().startswith("<"))
    return [*map(printable, weights), *map(printable, lines)]
