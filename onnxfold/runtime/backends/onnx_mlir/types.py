"""Element types: the numbers of onnx-mlir's C API, its names in signatures, and NumPy's types.

The numbers are those of ONNX up to 19; the types of 4 bits have numbers of their own, and their
elements take a byte each.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_TABLE: tuple[tuple[int, str, Any], ...] = (
    (1, "f32", np.float32),
    (2, "ui8", np.uint8),
    (3, "i8", np.int8),
    (4, "ui16", np.uint16),
    (5, "i16", np.int16),
    (6, "i32", np.int32),
    (7, "i64", np.int64),
    (9, "i1", np.bool_),
    (10, "f16", np.float16),
    (11, "f64", np.float64),
    (12, "ui32", np.uint32),
    (13, "ui64", np.uint64),
    (14, "complex<f32>", np.complex64),
    (15, "complex<f64>", np.complex128),
    (16, "bf16", ml_dtypes.bfloat16),
    (17, "f8e4m3fn", ml_dtypes.float8_e4m3fn),
    (18, "f8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    (19, "f8e5m2", ml_dtypes.float8_e5m2),
    (20, "ui4", ml_dtypes.uint4),
    (21, "i4", ml_dtypes.int4),
)
# Strings (8) are pointers to memory whose owner the API does not tell.

DTYPES: dict[int, np.dtype[Any]] = {number: np.dtype(dtype) for number, _, dtype in _TABLE}
NUMBERS: dict[np.dtype[Any], int] = {dtype: number for number, dtype in DTYPES.items()}
_NAMES = {name: np.dtype(dtype) for _, name, dtype in _TABLE}
_NAMES.update({"complex64": np.dtype(np.complex64), "complex128": np.dtype(np.complex128)})


@dataclass(frozen=True)
class TensorType:
    """An input or an output of a library.

    Attributes:
        name: As in the model.
        dtype: NumPy's.
        shape: -1 for a dimension that is known at run time only.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        dims = ", ".join("?" if d < 0 else str(d) for d in self.shape)
        return f"{self.dtype.name}[{dims}]"

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a shape fits."""
        return len(shape) == len(self.shape) and all(
            known in (-1, size) for known, size in zip(self.shape, shape, strict=True)
        )


def parse_signature(text: str) -> list[TensorType]:
    """Return the types in a signature as the library gives it.

    Raises:
        ValueError: It is not readable, or holds something else than tensors of known types.
    """
    # types that are not in onnx-mlir's own list come without quotes
    quoted = re.sub(r'("type"\s*:\s*)([A-Za-z][\w<>]*)(\s*,)', r'\1"\2"\3', text)
    try:
        items = json.loads(quoted)
    except ValueError as error:
        raise ValueError(f"its signature is not readable: {error}") from error
    types = []
    for item in items:
        if "type" not in item:
            raise ValueError("it takes or makes sequences")
        dtype = _NAMES.get(item["type"]) or _NAMES.get(item["type"].lower())
        if dtype is None:
            raise ValueError(f"{item.get('name')!r} is of type {item['type']!r}")
        types.append(TensorType(item.get("name", ""), dtype, tuple(item["dims"])))
    return types
