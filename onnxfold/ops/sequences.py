"""Definitions of ops on sequences of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.ir.symbolic.fact import UNKNOWN, Fact
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.definition import Op, op


@op("SplitToSequence")
class SplitToSequence(Op):
    """A division into a sequence of tensors."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return an unknown fact for pieces without the split axis.

        ONNX and onnxruntime infer different shapes for such pieces.

        Raises:
            Undecided: The pieces keep the split axis, or there is no second operand.
        """
        if a.input(1) is None or a.attributes.get("keepdims", 1):
            raise Undecided
        return [UNKNOWN]
