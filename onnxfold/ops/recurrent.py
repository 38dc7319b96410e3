"""Definitions of recurrent networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.ir.symbolic.fact import Fact
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.definition import Op, StaticShape, Work, op
from onnxfold.ops.products import multiply_accumulates
from onnxfold.ops.traits import Trait


@op("GRU", "LSTM", "RNN", traits=Trait.UNBOUNDED)
class Recurrent(Op):
    """A recurrent layer on a batch of sequences of vectors."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Record that the first operand has three axes, and raise Undecided.

        onnx infers the results.
        """
        a.require(len(a.shape(0)) == 3)
        raise Undecided

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of multiplying by all weights in W and R for each step and sequence."""
        rows = math.prod(inputs[0][:2])
        weights = math.prod(inputs[1]) + math.prod(inputs[2])
        return multiply_accumulates(rows * weights)
