"""Sizes of the values that depend on runtime constants, at nominal sizes of dynamic dimensions.

What a cut saves and costs has to be compared before any runtime constant is known. So every
symbolic dimension gets a nominal size, the runtime constants become zeros of that shape, and the
evaluator of constant propagation says what shape everything behind them has: it computes the short
integer vectors that sizes are made of and postpones all else. Nothing of this decides what a model
computes, only where it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constants import captured_values, is_constant_node, tensor_of_constant
from onnxfold.analysis.scopes import Scopes
from onnxfold.kernels.evaluator import ComputationFailed, Evaluator
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Unfoldable
from onnxfold.pool import Buffer, Pool
from onnxfold.pool.buffer import Array

NOMINAL = 64
"""Size of a symbolic dimension that the caller names no size for."""

_MAX_BYTES = 1 << 40  # a nominal runtime constant beyond this is a mistake in a size


class NominalSizes:
    """Shapes and bytes of the values that nodes make of runtime constants.

    Args:
        model: The model.
        runtime_constants: Inputs of its graph.
        nominal: Sizes of symbolic dimensions by name; the others are `NOMINAL`.
    """

    def __init__(
        self,
        model: ir.Model,
        runtime_constants: Iterable[ir.Value],
        nominal: Mapping[str, int] | None = None,
    ) -> None:
        self._dims = nominal or {}
        self._opsets = Scopes(model).of(model.graph).opsets
        self._pool = Pool()
        self._evaluator = Evaluator(self._pool, model.functions.values(), model.ir_version)
        for value in runtime_constants:
            array = self._stand_in(value)
            if array is not None and value.dtype is not None:
                self._pool.bind(value, self._pool.adopt(array, value.dtype))

    def visit(self, node: ir.Node) -> None:
        """Find the sizes of a node's results; those it reads from were visited before."""
        if is_constant_node(node):
            output = node.outputs[0]
            if output.const_value is None:
                output.const_value = tensor_of_constant(node)
            return
        captured = captured_values(node) if node.attributes else []
        operands = [None if v is None else self._buffer(v) for v in node.inputs]
        captures = {v: b for v in captured if (b := self._buffer(v)) is not None}
        if len(captures) < len(captured) or any(
            b is None and v is not None for b, v in zip(operands, node.inputs, strict=True)
        ):
            return
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.apply(Operation(node, operands, self._opsets, captures))
        except (Unfoldable, ComputationFailed):
            return
        for output, buffer in zip(node.outputs, results, strict=False):
            if buffer is not None:
                self._pool.bind(output, buffer)

    def _buffer(self, value: ir.Value) -> Buffer | None:
        if not self._pool.is_bound(value) and value.const_value is None:
            return None
        return self._pool.buffer_of(value)

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The nominal shape; None if it is not known or the value is no tensor."""
        buffer = self._buffer(value)
        return None if buffer is None or buffer.type_proto is not None else buffer.shape

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The dtype; None if it is not known or the value is no tensor."""
        buffer = self._buffer(value)
        return None if buffer is None or buffer.type_proto is not None else buffer.dtype

    def nbytes(self, value: ir.Value) -> int | None:
        """Nominal bytes; None if they are not known or the value is no tensor."""
        buffer = self._buffer(value)
        return None if buffer is None or buffer.type_proto is not None else buffer.nbytes

    def _stand_in(self, value: ir.Value) -> Array | None:
        if not isinstance(value.type, ir.TensorType) or value.shape is None:
            return None
        dtype = value.type.dtype
        shape = tuple(self._size(dim) for dim in value.shape)
        if dtype == ir.DataType.STRING or math.prod(shape) * dtype.bitwidth > 8 * _MAX_BYTES:
            return None
        # a single integer is a length or a count; zeros would make empty tables of it
        fill = NOMINAL if dtype.is_integer() and math.prod(shape) == 1 else 0
        array: Array = np.broadcast_to(np.array(fill).astype(dtype.numpy()), shape)
        return array

    def _size(self, dim: int | ir.SymbolicDim) -> int:
        if isinstance(dim, int):
            return dim if dim >= 0 else NOMINAL
        if dim.value is None:
            return NOMINAL
        if dim.value in self._dims:
            return self._dims[dim.value]
        try:
            size = dim.evaluate({**dict.fromkeys(dim.free_symbols(), NOMINAL), **self._dims})
        except ValueError:
            return NOMINAL
        return size if isinstance(size, int) and size >= 0 else NOMINAL
