"""Small numbers as ONNX's integer fields store them: a byte for seven bits, not eight for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxfold.onnx_ir_private import is_a
from onnxfold.storage.checks import TYPED_FIELDS
from onnxfold.storage.streaming import is_streamed
from onnxfold.storage.tensors import ViewTensor

# Bytes as raw data. What is computed while it is written is planned from its shape alone.
_LONGEST_COMPUTED = 4096
_LONGEST = 1 << 20

# Those that may take less as varints.
INTEGERS = frozenset(d for d in ir.DataType if d.is_integer() and d.bitwidth >= 16)
_AS_THEY_CAME = frozenset((ViewTensor, ir.TensorProtoTensor, ir.ExternalTensor))

# NumPy takes as long for one number as Python for so many.
_FEW = 16
_STEPS = np.array([1 << 7 * k for k in range(1, 10)], dtype=np.uint64)


def as_varints(tensor: ir.TensorProtocol) -> ir.TensorProtoTensor | None:
    """Return the tensor with its integers as varints, if they take less than raw data.

    A tensor as it came from a file stays as it came, whatever it takes.
    """
    if tensor.dtype not in INTEGERS or not _AS_THEY_CAME.isdisjoint(type(tensor).__mro__):
        return None
    if not 0 < tensor.nbytes < (_LONGEST_COMPUTED if is_streamed(tensor) else _LONGEST):
        return None
    values = np.frombuffer(tensor.tobytes(), tensor.dtype.numpy().newbyteorder("<"))
    if varints_bytes(values) >= tensor.nbytes:
        return None
    proto = onnx.TensorProto(
        name=tensor.name, data_type=tensor.dtype.value, dims=tensor.shape.numpy()
    )
    getattr(proto, TYPED_FIELDS[tensor.dtype.value][0]).extend(values.tolist())
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    for key, value in tensor.metadata_props.items():
        proto.metadata_props.add(key=key, value=value)
    return ir.TensorProtoTensor(proto)


def varint_bytes(number: int) -> int:
    """Return what an integer takes; a negative one is extended to 64 bits, and takes ten bytes."""
    if 0 <= number < 128:
        return 1
    return 10 if number < 0 else (number.bit_length() + 6) // 7


def varints_bytes(values: npt.NDArray[Any]) -> int:
    """Return what integers take as varints, which is what is written if it is less."""
    if values.size <= _FEW:
        return sum(map(varint_bytes, values.ravel().tolist()))
    unsigned = values.astype(np.uint64)
    return values.size + int(np.searchsorted(_STEPS, unsigned, "right").sum())


def written_bytes(tensor: ir.TensorProtocol) -> int:
    """Return what the data of a tensor take in a model, so that a result of as many bytes fits.

    Less than its elements where varints hold them and a result of that shape would be raw data.
    """
    if tensor.nbytes < _LONGEST_COMPUTED:
        return tensor.nbytes
    typed = as_varints(tensor)
    if typed is None and is_a(tensor, ir.TensorProtoTensor):
        typed = tensor
    if typed is None or typed.raw.HasField("raw_data"):
        return tensor.nbytes
    size: int = typed.raw.ByteSize()
    return min(size, tensor.nbytes)
