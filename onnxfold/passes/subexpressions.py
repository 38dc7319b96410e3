"""Common subexpressions where a runtime carries half precision in float32."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.half import Carried
from onnxfold.analysis.symbolic import SymbolicAnalysis

_APART = "onnxfold.apart"


class CarefulSubexpressions(ir.passes.InPlacePass):
    """onnx-ir's pass, but what must stay for half precision to be rounded where it is stays apart.

    Each of them has an attribute of its own while the pass runs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        half = Carried(SymbolicAnalysis(model))
        apart = [node for node in model.graph if half.stays(node)]
        for k, node in enumerate(apart):
            node.attributes[_APART] = ir.AttrInt64(_APART, k)
        try:
            return common.CommonSubexpressionEliminationPass()(model)
        finally:
            for node in apart:
                del node.attributes[_APART]
