"""Definitions of windows and Fourier transforms of signals."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.ops.definition import Op, op
from onnxfold.ops.numpy_kernels import Array
from onnxfold.ops.traits import Trait


class Signal(Op):
    """An op on signals that accepts only scalar constants for certain operands."""

    def accepts_constant(
        self, node: ir.Node, index: int, dtype: ir.DataType | None, elements: Array
    ) -> bool:
        """Return whether a constant is a scalar, because onnx rejects constants with one axis."""
        return elements.ndim == 0


@op("BlackmanWindow", "HammingWindow", "HannWindow")
class SignalWindow(Signal):
    """A window function. The operand is the number of elements."""

    restricted_constants = (0,)


@op("DFT", traits=Trait.UNBOUNDED)
class DFT(Signal):
    """The discrete Fourier transform."""

    restricted_constants = (1, 2)
