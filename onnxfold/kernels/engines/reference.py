"""Evaluation by onnx's reference evaluator: for what onnxruntime has no CPU kernel for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels.engines.assembly import assemble
from onnxfold.kernels.engines.onnxruntime import EvaluationError
from onnxfold.kernels.operation import Operation
from onnxfold.pool.buffer import Array


def run(operation: Operation, functions: Sequence[onnx.FunctionProto] = ()) -> list[Array | None]:
    """All results of one operation; None for an output the node leaves out.

    Raises:
        EvaluationError: the reference evaluator cannot compute it, or gives a type ONNX forbids.
    """
    from onnx.reference import ReferenceEvaluator

    wanted = [(operation, k) for k, o in enumerate(operation.node.outputs) if o.name]
    assembly = assemble([operation], wanted, functions, onnx.IR_VERSION, operation.opsets)
    feeds: dict[str, Any] = {name: buffer.array() for name, buffer in assembly.feeds.items()}
    try:
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(assembly.model).run(None, feeds)
    except Exception as error:  # any class: it is plain Python over NumPy
        raise EvaluationError(
            f"reference evaluator: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    results: list[Array | None] = [None] * len(operation.node.outputs)
    for (_, k), value in zip(wanted, computed, strict=True):
        if not isinstance(value, np.ndarray | np.generic):
            raise EvaluationError("reference evaluator: the result is not a tensor")
        results[k] = _result(np.asarray(value))
    return results


def _result(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "U" else array


def matches(array: Array, dtype: ir.DataType) -> bool:
    """True if the evaluator's array has the dtype that ONNX's type inference promises."""
    return dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) or array.dtype == dtype.numpy()
