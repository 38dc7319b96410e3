"""The one-time check of a kernel: random inputs, onnxruntime's results, and how far apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.runtime.backends.base import CompileError

# Largest difference from onnxruntime that counts as right, relative to the larger of an element
# and the mean magnitude of its tensor.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}

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
    got, want, name = got.astype(np.float64), want.astype(np.float64), want.dtype.name
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    allowed = _TOLERANCE[name] * np.maximum(np.abs(want), np.abs(want[finite]).mean())
    with np.errstate(all="ignore"):
        ratio = np.abs(got - want)[finite] / np.maximum(allowed[finite], np.finfo(np.float64).tiny)
    return float(ratio.max())
