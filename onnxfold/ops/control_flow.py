"""Definitions of ops with subgraphs.

`onnxfold.analysis.propagation.FactPropagation` infers the results of these ops.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.ops.definition import Op, op
from onnxfold.ops.traits import Trait


@op("If", traits=Trait.UNBOUNDED | Trait.ANY_SIZES)
@op("Scan", traits=Trait.UNBOUNDED)
class ControlFlow(Op):
    """An op that runs subgraphs."""


@op("Loop", traits=Trait.UNBOUNDED)
class Loop(Op):
    """An op that runs a subgraph repeatedly."""

    def boundary_values(self, node: ir.Node, index: int) -> tuple[int, ...]:
        """Return a small number of iterations."""
        return (2,) if index == 0 else ()
