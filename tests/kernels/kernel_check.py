"""A kernel's result against onnxruntime's, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kernel_runtime as ort
import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from onnxfold.kernels import NotExact, find

OPSET = 23
UNSUPPORTED = (ort_errors.NotImplemented, ort_errors.InvalidGraph, ort_errors.Fail)


def kernel_results(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = OPSET,
    n_outputs: int = 1,
) -> list[np.ndarray]:
    found = find(op_type, opset)
    assert found is not None, f"no kernel for {op_type} in opset {opset}"
    with np.errstate(all="ignore"):
        return found(inputs, attributes or {}, n_outputs=n_outputs, opset=opset)


def bits(x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x).reshape(x.shape)
    width = ort.SUB_BYTE.get(x.dtype)
    if width is not None:
        return x.view(np.uint8) & np.uint8((1 << width) - 1)
    return x.view(f"u{x.dtype.itemsize}")


def is_nan(x: np.ndarray) -> np.ndarray:
    try:
        return np.isnan(x)
    except TypeError:
        return np.zeros(x.shape, bool)


def as_text(x: np.ndarray) -> np.ndarray:
    return np.array([s.encode() if isinstance(s, str) else s for s in x.flat], object)


def assert_identical(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Same shape, dtype and bits; NaN payloads may differ."""
    assert isinstance(actual, np.ndarray), what
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if expected.dtype.kind in "OUS":
        assert actual.dtype.kind in "OUS", what
        assert (as_text(actual) == as_text(expected)).all(), what
        return
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
    differ = (bits(actual) != bits(expected)) & ~(is_nan(actual) & is_nan(expected))
    if differ.any():
        where = np.argwhere(differ)[:5].tolist()
        got, want = actual[differ][:5], expected[differ][:5]
        raise AssertionError(f"{what}: {differ.sum()} differ, at {where}: {got}, not {want}")


DECLINING = {
    *("BitShift", "Cast", "CastLike", "CumSum", "Max", "Min", "Mod", "Pad", "Slice", "Split"),
    *("ReduceProd", "ReduceSum", "ScatterElements", "ScatterND"),
}
"""Ops whose kernels leave some operands to onnxruntime."""


def compare(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = OPSET,
    n_outputs: int = 1,
) -> str:
    """Assert that kernel and onnxruntime agree.

    Returns "same", "not exact" (the kernel declined, as those of ``DECLINING`` may) or
    "unsupported" (onnxruntime has no kernel for the dtypes; the result was not checked).
    """
    try:
        actual = kernel_results(op_type, inputs, attributes, opset=opset, n_outputs=n_outputs)
    except NotExact:
        assert op_type in DECLINING, f"the kernel of {op_type} declines"
        return "not exact"
    try:
        expected = ort.run(op_type, inputs, attributes, opset=opset, n_outputs=n_outputs)
    except UNSUPPORTED as error:
        if "running" in str(error):
            raise
        return "unsupported"
    except ort_errors.InvalidArgument as error:  # a dtype that it has not heard of
        if "Invalid tensor data type" not in str(error):
            raise
        return "unsupported"
    shapes = [None if x is None else f"{x.dtype.name}{list(x.shape)}" for x in inputs]
    what = f"{op_type}-{opset} {shapes} {attributes}"
    assert len(actual) == len(expected), what
    for a, e in zip(actual, expected, strict=True):
        assert_identical(a, e, what)
    return "same"
