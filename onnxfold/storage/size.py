"""How many bytes the elements of a tensor take."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

_STRING, _UNDEFINED = ir.DataType.STRING, ir.DataType.UNDEFINED
_BITS = {dtype: dtype.bitwidth for dtype in ir.DataType if dtype not in (_STRING, _UNDEFINED)}
_BITS |= {_STRING: 128, _UNDEFINED: 0}


def sizes_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The shape of a tensor; ``shape.numpy()`` looks first whether all sizes are numbers."""
    return tensor.shape.dims  # type: ignore[return-value]


def data_bytes(dtype: ir.DataType, shape: Iterable[Any]) -> int:
    """Return the number of bytes that the elements of a tensor take in a file.

    Sub-byte types are packed and rounded up. For strings it is an estimate. A tensor without a
    type, which an attribute that was left empty has, takes none.

    Args:
        dtype: The element type.
        shape: All integers.
    """
    count: int = math.prod(shape)
    return -(-count * _BITS[dtype] // 8)
