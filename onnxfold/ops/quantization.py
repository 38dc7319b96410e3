"""Definitions of quantization and dequantization."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.ir.symbolic.fact import Fact, Shape
from onnxfold.ops.application import Application, Undecided, axis_of
from onnxfold.ops.definition import Op, definition_of, op
from onnxfold.ops.traits import Trait

_QUANTIZES = Trait.HEAVY | Trait.ALONG_AXES | Trait.QUANTIZES


class Quantization(Op):
    """A conversion by one scale and zero point, or by several along an axis or in blocks."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of the first operand with the dtype of `result`.

        Raises:
            Undecided: The attribute ``output_dtype`` is set, or the shape of a scale or zero point
                is unknown.
        """
        attributes = a.attributes
        if attributes.get("output_dtype", 0):
            raise Undecided
        shape = a.fact(0).shape
        is_blocked = bool(attributes.get("block_size"))
        a.may_fail_unless(not is_blocked)
        if is_blocked:
            return self.result(a, shape)
        for k in range(1, len(a.inputs)):
            if shape and a.inputs[k] is not None and a.shape(k) not in ((), (1,)):
                axis = axis_of(attributes.get("axis", 1), len(shape))
                a.may_fail_unless(len(a.shape(k)) == 1)
                a.require_equal(a.shape(k)[0], shape[axis])
        return self.result(a, shape)

    def result(self, a: Application, shape: Shape | None) -> Sequence[Fact]:
        """Return the fact of the result with this shape."""
        raise NotImplementedError


@op("DequantizeLinear", "com.microsoft::DequantizeLinear", traits=_QUANTIZES)
class DequantizeLinear(Quantization):
    """The conversion of quantized numbers to floating-point numbers."""

    def result(self, a: Application, shape: Shape | None) -> Sequence[Fact]:
        """Return the fact with the dtype of the scale."""
        return a.like(shape, 1)


def is_dequantization(node: ir.Node) -> bool:
    """Return whether a node is a DequantizeLinear."""
    return isinstance(definition_of(node), DequantizeLinear)


@op("QuantizeLinear", "com.microsoft::QuantizeLinear", traits=_QUANTIZES)
class QuantizeLinear(Quantization):
    """The conversion of floating-point numbers to quantized numbers."""

    def result(self, a: Application, shape: Shape | None) -> Sequence[Fact]:
        """Return the fact with the dtype of the zero point, or with uint8 if it is omitted."""
        zero_point = a.input(2)
        return a.tensor(shape, ir.DataType.UINT8 if zero_point is None else zero_point.dtype)


@op("DynamicQuantizeLinear", traits=Trait.QUANTIZES)
class DynamicQuantizeLinear(Op):
    """A quantization that also computes the scale and zero point. onnx infers the results."""
