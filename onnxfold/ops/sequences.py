"""Sequences of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.ir.symbolic.fact import UNKNOWN, Fact
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.definition import Op, op


@op("SplitToSequence")
class SplitToSequence(Op):
    """Split into a sequence of tensors."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Leave pieces without their axis unknown: ONNX and onnxruntime infer different shapes."""
        if a.input(1) is None or a.attributes.get("keepdims", 1):
            raise Undecided
        return [UNKNOWN]
