"""Constants that must stay where a runtime carries half precision in float32."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.analysis.half import REASON, Carried
from onnxfold.analysis.rounding import Rounding, mentions_half
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.kernels.operation import Operation
from onnxfold.pool import Buffer


class HalfConstants:
    """Which constants of a model must not be folded.

    Args:
        model: The model.
    """

    reason = REASON

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._rounding = Rounding(model)
        self._carried = Carried(SymbolicAnalysis(model))

    def objection(self, operation: Operation, results: Sequence[Buffer | None]) -> str | None:
        """Why an operation on constants must stay; None if it may be folded.

        Raises:
            ComputationFailed: a postponed operand that decides cannot be computed.
        """
        if any(self._carried.feeds_joint(value) for value in operation.node.outputs):
            return REASON
        return self._rounding.objection(operation, results)

    def is_inside(self, node: ir.Node) -> bool:
        """True for a node in which something is in half precision."""
        return mentions_half(node, self._functions)
