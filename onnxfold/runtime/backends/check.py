"""The one-time check of a kernel: random inputs, onnxruntime's results, and how far apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.runtime.backends.base import CompileError

# Largest difference from onnxruntime that counts as right, relative to the larger of an element
# and the mean magnitude of its tensor.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}

_PIECE = 1 << 18  # elements that are compared at a time

_NOMINAL = 16  # size of a symbolic dimension in the check


def random_inputs(model: ir.Model) -> list[Any]:
    """Random arrays in the order of the inputs: numbers that are sizes or scales as likely as data.

    Raises:
        CompileError: An input's rank is not known, or it is no tensor of numbers.
    """
    rng = np.random.default_rng(0)
    feeds = []
    for value in model.graph.inputs:
        assert value.dtype is not None
        if value.shape is None:
            raise CompileError(f"the rank of {value.name!r} is not known")
        shape = [d if isinstance(d, int) else _NOMINAL for d in value.shape]
        dtype = value.dtype.numpy()
        if value.dtype == ir.DataType.BOOL:
            feeds.append(rng.random(shape) < 0.5)
        elif value.dtype.is_integer():
            feeds.append(rng.integers(0, 8, shape).astype(dtype))
        elif dtype.kind not in "fV":
            raise CompileError(f"the check makes no random {dtype} for {value.name!r}")
        else:
            feeds.append(rng.standard_normal(shape).astype(dtype))
    return feeds


def error_of(got: Any, want: Any) -> float:
    """Largest difference in units of the tolerance; infinite for another shape."""
    if got.shape != want.shape:
        return float("inf")
    got = got.view(want.dtype)
    if want.dtype.kind not in "fV":
        return 0.0 if np.array_equal(got, want) else float("inf")
    pieces = list(zip(_pieces(got), _pieces(want), strict=True))
    total, count = 0.0, 0
    for _, part in pieces:
        wide = np.abs(_wide(part))
        finite = np.isfinite(wide)
        total += float(wide[finite].sum())
        count += int(finite.sum())
    magnitude = total / count if count else 0.0
    tolerance = _TOLERANCE[want.dtype.name]
    return max((_error(*piece, tolerance, magnitude) for piece in pieces), default=0.0)


def _error(got: Any, want: Any, tolerance: float, magnitude: float) -> float:
    """The same for a piece of the tensors; the magnitude is the mean of the whole."""
    got, want = _wide(got), _wide(want)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    got, want = got[finite], want[finite]
    if not want.size:
        return 0.0
    allowed = np.maximum(tolerance * np.maximum(np.abs(want), magnitude), np.finfo(np.float64).tiny)
    with np.errstate(all="ignore"):
        error = float((np.abs(got - want) / allowed).max())
    return error if error == error else float("inf")  # a NaN that should be a number


def _pieces(array: Any) -> list[Any]:
    """Flat parts of an array, so that wide copies of it are never whole."""
    flat = array.reshape(-1)
    return [flat[k : k + _PIECE] for k in range(0, flat.size, _PIECE)]


def _wide(array: Any) -> Any:
    return array.astype(np.float64)
