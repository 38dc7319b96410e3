"""Element-wise ops that onnxruntime computes, on pieces: those whose bits a piece does not change.

SIMD code computes the last few elements of an array in another way than the others, and where it
begins depends on the length and on the threads. Most of onnxruntime's functions give the same bits
in all these ways, some do not. That is found out by asking it: the results for many numbers at
once are compared with those for a few of them at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels.dtypes import FLOAT16, FLOAT32, FLOAT64, DType
from onnxfold.kernels.engines import OLDEST_OPSET, UNARY, session_of
from onnxfold.kernels.inference import schema_of
from onnxfold.kernels.operation import Operation
from onnxfold.pool.buffer import Array

_LENGTHS = (1, 3, 5, 7, 13, 16, 17, 31, 100, 1000)
_PIECES = 300

Attributes = tuple[tuple[str, Any], ...]


def computes_pieces(operation: Operation) -> bool:
    """True if onnxruntime gives the operation's result piece by piece as well, bit for bit."""
    node = operation.node
    if node.domain != "" or node.op_type not in UNARY or len(operation.operands) != 1:
        return False
    (operand,) = operation.operands
    if operand is None or operand.type_proto is not None:
        return False
    dtype = operand.dtype.numpy()
    # the 16 bit floats are computed in float32, where a difference shows
    checked = [FLOAT32, dtype] if dtype == FLOAT16 else [dtype]
    if dtype not in (FLOAT16, FLOAT32, FLOAT64):
        return False
    if operation.is_wide:  # rounding hides the last bits
        return _has_kernel(*_key(operation), dtype)
    return all(_is_the_same_anywhere(*_key(operation), d) for d in checked)


def call(operation: Operation) -> Callable[[Array], Array]:
    """A function that computes the operation on an array of any shape and strides."""
    (operand,) = operation.operands
    assert operand is not None
    run = _runner(*_key(operation), operand.dtype.numpy())

    def compute(x: Array) -> Array:
        return run(np.ascontiguousarray(x).reshape(-1)).reshape(x.shape)

    return compute


def _key(operation: Operation) -> tuple[str, int, Attributes]:
    op_type, opset = operation.node.op_type, operation.opset
    schema = schema_of(op_type, opset, "")
    if schema is not None:  # the model's opset may be newer than onnxruntime
        opset = max(schema.since_version, min(opset, OLDEST_OPSET))
    return op_type, opset, tuple(sorted(operation.attributes.items()))


@functools.lru_cache(maxsize=64)
def _runner(
    op_type: str, opset: int, attributes: Attributes, dtype: DType
) -> Callable[[Array], Array]:
    """A function of flat arrays. Raises what onnxruntime raises if it has no kernel."""
    node = onnx.helper.make_node(op_type, ["x"], ["y"], **dict(attributes))
    number = ir.DataType.from_numpy(dtype).value
    graph = onnx.helper.make_graph(
        [node],
        "piece",
        [onnx.helper.make_tensor_value_info("x", number, [None])],
        [onnx.helper.make_tensor_value_info("y", number, [None])],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8
    )
    session = session_of(model.SerializeToString(), threads=1)

    def run(x: Array) -> Array:
        result: Array = session.run(["y"], {"x": x})[0]
        return result

    return run


@functools.cache
def _has_kernel(op_type: str, opset: int, attributes: Attributes, dtype: DType) -> bool:
    try:
        _runner(op_type, opset, attributes, dtype)
    except Exception:  # onnxruntime raises many classes without a common base
        return False
    return True


@functools.cache
def _is_the_same_anywhere(op_type: str, opset: int, attributes: Attributes, dtype: DType) -> bool:
    rng = np.random.default_rng(0)
    numbers = [rng.standard_normal(20_000) * spread for spread in (0.01, 1, 5, 50)]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1.0, -1.0, 88.5, -104.0]
    with np.errstate(all="ignore"):
        sample = np.concatenate([special, *numbers, rng.uniform(-1, 1, 20_000)]).astype(dtype)
        rng.shuffle(sample)
    try:
        run = _runner(op_type, opset, attributes, dtype)
        expected = _bits(run(sample))
        for length in _LENGTHS:
            starts = rng.integers(0, sample.size - length, _PIECES)
            pieces = [run(sample[k : k + length].copy()) for k in starts]
            wanted = [expected[k : k + length] for k in starts]
            if not np.array_equal(_bits(np.concatenate(pieces)), np.concatenate(wanted)):
                return False
    except Exception:  # onnxruntime raises many classes without a common base
        return False
    return True


def _bits(x: Array) -> Array:
    """The bits of numbers; any NaN is as good as another."""
    x = np.where(np.isnan(x), x.dtype.type(np.nan), x)
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")
