"""Evaluation by onnx's reference evaluator: for what onnxruntime has no CPU kernel for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels.inference import type_of
from onnxfold.kernels.onnxruntime import EvaluationError
from onnxfold.kernels.operation import Operation
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import Array


def run(operation: Operation, functions: Sequence[onnx.FunctionProto] = ()) -> list[Array | None]:
    """All results of one operation; None for an output the node leaves out.

    Raises:
        EvaluationError: the reference evaluator cannot compute it, or gives a type ONNX forbids.
    """
    from onnx.reference import ReferenceEvaluator

    inputs: list[str] = []
    feeds: dict[str, Any] = {}
    graph = onnx.GraphProto(name="fold")
    for k, buffer in enumerate(operation.operands):
        inputs.append(f"i{k}" if buffer is not None else "")
        if buffer is not None:
            feeds[inputs[-1]] = _feed(buffer)
            graph.input.append(onnx.ValueInfoProto(name=inputs[-1], type=type_of(buffer)))
    for name, buffer in operation.captures.items():
        feeds[name] = _feed(buffer)
        graph.input.append(onnx.ValueInfoProto(name=name, type=type_of(buffer)))
    outputs = [f"o{k}" if o.name else "" for k, o in enumerate(operation.node.outputs)]
    graph.node.append(operation.to_proto(inputs, outputs))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name)
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, graph=graph, functions=functions)
    for domain, version in operation.opsets.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    try:
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # any class: it is plain Python over NumPy
        raise EvaluationError(
            f"reference evaluator: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    named = iter(computed)
    results: list[Array | None] = []
    for name in outputs:
        value = next(named) if name else None
        if name and not isinstance(value, np.ndarray | np.generic):
            raise EvaluationError("reference evaluator: the result is not a tensor")
        results.append(_result(np.asarray(value)) if name else None)
    return results


def _feed(buffer: Buffer) -> Array:
    """The elements as the reference evaluator takes them: strings are text, not bytes."""
    array = buffer.array()
    if buffer.dtype != ir.DataType.STRING:
        return array
    texts = [s.decode() if isinstance(s, bytes) else str(s) for s in array.reshape(-1)]
    return np.array(texts, np.str_).reshape(array.shape)


def _result(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "U" else array


def matches(array: Array, dtype: ir.DataType) -> bool:
    """True if the evaluator's array has the dtype that ONNX's type inference promises."""
    return dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) or array.dtype == dtype.numpy()
