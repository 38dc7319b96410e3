"""Element-wise ops whose results in onnxruntime do not depend on the position of an element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels.assembly import IR_VERSION
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Array, Kind, NumpyKernel
from onnxfold.onnxruntime_sessions import open_session, session_options
from onnxfold.ops import Trait, ops

EXACT_ANYWHERE, VECTORIZED, _ORDERING = map(ops, (Trait.EXACT, Trait.VECTORIZED, Trait.ORDERS))


def is_position_dependent(op_type: str, dtype: ir.DataType) -> bool:
    """Return whether onnxruntime's result for an element may depend on its position.

    Its SIMD code compares the lower halves of int64 as signed numbers; Relu(-0.0) is -0.0 in its
    SIMD code for float16, and 0.0 in other code.
    """
    is_ordered = op_type in _ORDERING and dtype == ir.DataType.INT64
    return is_ordered or (op_type, dtype) == ("Relu", ir.DataType.FLOAT16)


def in_pieces(operation: Operation) -> NumpyKernel | None:
    """Return a kernel by which onnxruntime computes any piece of the operation's result separately.

    None if the bits of an element may depend on its position, or if onnxruntime has no kernel.
    """
    node, (first, *others) = operation.node, operation.operands
    is_free = node.op_type in (*EXACT_ANYWHERE, *VECTORIZED)
    if node.domain or not is_free or others or first is None or first.dtype != ir.DataType.FLOAT:
        return None
    graph = onnx.GraphProto(name="piece", node=[operation.to_proto(["x"], ["y"])])
    graph.input.append(onnx.helper.make_tensor_value_info("x", ir.DataType.FLOAT, ["n"]))
    graph.output.append(onnx.helper.make_tensor_value_info("y", ir.DataType.FLOAT, ["n"]))
    opset = onnx.helper.make_opsetid("", operation.opset)
    model = onnx.ModelProto(ir_version=IR_VERSION, graph=graph, opset_import=[opset])
    function = _of_pieces(model.SerializeToString())
    if function is None:
        return None
    return NumpyKernel(node.op_type, function, 1, Kind.ELEMENTWISE, frozenset(node.attributes))


@functools.cache
def _of_pieces(model: bytes) -> Callable[..., Array] | None:
    """Return a function that runs a model of one node on an array's elements, with one thread."""
    try:
        session = open_session(model, session_options(threads=1, node_by_node=True))
    except Exception:  # the exceptions of onnxruntime have no common base class
        return None

    def compute(x: Array, **_: Any) -> Array:
        (result,) = session.run(None, {"x": np.require(x, requirements=["C", "A"]).reshape(-1)})
        return np.asarray(result).reshape(x.shape)

    return compute
