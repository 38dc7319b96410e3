"""Shapes that are computed more than once, or with more nodes than it takes."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.kernels.operation import subgraphs_of
from onnxfold.passes.symbolic_edit import Edit

_SIZES = (ir.DataType.INT64, ir.DataType.INT32)


class Sharing:
    """Visits nodes from the first to the last; later ones use what earlier ones computed.

    Args:
        analysis: What is known of the model.
        edit: Changes it.
    """

    def __init__(self, analysis: SymbolicAnalysis, edit: Edit) -> None:
        self._analysis = analysis
        self._edit = edit
        self._levels: list[dict[object, ir.Value]] = []

    def graph(self, graph: ir.Graph) -> None:
        """Visit a graph and its subgraphs, which see what comes before their node."""
        self._levels.append({})
        for node in list(graph):
            if node.graph is not graph:
                continue
            for inner in list(subgraphs_of(node)) if node.attributes else ():
                self.graph(inner)
            for value in node.outputs:
                if value.uses():
                    self._share(value)
        self._levels.pop()

    def _share(self, value: ir.Value) -> None:
        fact = self._analysis.of(value)
        if not fact.is_symbolic:
            return
        key = fact.key()
        for level in self._levels:
            first = level.get(key)
            if first is not None and first.graph is not None:
                if not value.is_graph_output():
                    self._edit.replace(value, first)
                return
        self._levels[-1][key] = value
