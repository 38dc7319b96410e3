"""Fold shape arithmetic, with dimensions that stay dynamic."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.symbolic import ASSUMPTIONS, SymbolicAnalysis
from onnxfold.editing import remove_unused
from onnxfold.graphs import root_graphs, subgraphs_of
from onnxfold.onnx_ir_private import is_unused, is_used, nodes_of
from onnxfold.options import Options
from onnxfold.passes.context import RunContext
from onnxfold.passes.shapes.edit import Edit
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.passes.shapes.operands import simplify
from onnxfold.passes.shapes.sharing import Sharing


class SymbolicShapes(ir.passes.InPlacePass):
    """Rewrite a model by its inferred shapes, without fixing dynamic dimensions.

    Values that are the same in every run become constants: shapes, sizes, comparisons. A shape
    operand becomes a constant if 0 and -1 can express the rest. Duplicate computations are merged,
    shapes are assembled with the fewest nodes, and Reshape, Expand, Slice and the like are removed
    if they change nothing.

    Args:
        options: Sizes of dimensions (``{"batch": 1}``) and shapes of inputs to declare; dimensions
            that stay dynamic; values that must stay.
        run: The context of the run, which collects the assumptions.
    """

    def __init__(self, options: Options | None = None, *, run: RunContext | None = None) -> None:
        self._options = options or Options()
        self._run = run

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model.

        Raises:
            UsageError: A dimension or input to fix does not exist or has another size.
        """
        options = self._options
        fixed = fix_dims(model, options.dims, options.input_shapes, options.keep_dims)
        facts = facts_of(model)
        analysis = facts.types
        analysis.run()
        if self._run is not None and analysis.table.has_symbols():
            self._run.result.assumptions = ASSUMPTIONS
        edit = Edit(facts, options.keeps)
        fresh, analysis.journal = analysis.journal, set()
        for graph in root_graphs(model):
            if _simplify(graph, analysis, edit, fresh):
                Sharing(analysis, facts.constness, edit).graph(graph)
        return ir.passes.PassResult(model, modified=bool(fixed or edit.changes))


def _simplify(
    graph: ir.Graph, analysis: SymbolicAnalysis, edit: Edit, fresh: Collection[ir.Node]
) -> bool:
    """Visit nodes from last to first, so that only final results are stored.

    Args:
        graph: The graph.
        analysis: The analysis of the model.
        edit: Edits the model.
        fresh: The nodes of which something was learned since the pass last ran.

    Returns:
        Whether one of them computes with sizes.
    """
    has_sizes = False
    for node in reversed(nodes_of(graph)):
        if node not in fresh or node.graph is not graph:
            continue
        if is_unused(node):
            remove_unused([node], edit.keeps)
            continue
        for value in node.outputs:
            fact = analysis.of(value)
            if fact.items is None:
                continue
            known = fact.known
            if known is None:
                has_sizes = True
            elif is_used(value) and not analysis.known.is_constant(value):
                edit.store(value, known)
        if node.graph is None or simplify(node, analysis, edit):
            continue
        if node in analysis.scopes.parents:
            for inner in list(subgraphs_of(node)):
                has_sizes |= _simplify(inner, analysis, edit, fresh)
    return has_sizes
