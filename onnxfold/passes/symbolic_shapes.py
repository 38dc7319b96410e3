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

    ``assumptions`` holds the assumptions of the last run about inputs: none if all sizes are
    numbers.

    Args:
        options: Sizes of dimensions (``{"batch": 1}``) and shapes of inputs to declare; dimensions
            that stay dynamic; values that must stay.
        run: The context of the run, which collects the assumptions.
    """

    def __init__(self, options: Options | None = None, *, run: RunContext | None = None) -> None:
        self._options = options or Options()
        self._run = run
        self.assumptions: tuple[str, ...] = ()

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
        self.assumptions = ASSUMPTIONS if analysis.table.has_symbols() else ()
        if self._run is not None:
            self._run.result.assumptions = self.assumptions
        edit = Edit(facts, options.keeps)
        fresh, analysis.journal = analysis.journal, set()
        simplifier = _Simplifier(analysis, edit, fresh)
        for graph in root_graphs(model):
            simplifier.graph(graph)
            if simplifier.has_symbolic_elements:
                Sharing(analysis, facts.constness, edit).graph(graph)
        return ir.passes.PassResult(model, modified=bool(fixed or edit.changes))


class _Simplifier:
    """Visits nodes from last to first, so that only final results are stored.

    Args:
        analysis: The analysis of the model.
        edit: Edits the model.
        fresh: The nodes of which something was learned since the pass last ran.
    """

    def __init__(self, analysis: SymbolicAnalysis, edit: Edit, fresh: Collection[ir.Node]) -> None:
        self._analysis = analysis
        self._edit = edit
        self._fresh = fresh
        self.has_symbolic_elements = False
        """Whether a fresh node computes with sizes."""

    def graph(self, graph: ir.Graph) -> None:
        for node in reversed(nodes_of(graph)):
            if node not in self._fresh or node.graph is not graph:
                continue
            if is_unused(node):
                remove_unused([node], self._edit.keeps)
            else:
                self._node(node)

    def _node(self, node: ir.Node) -> None:
        for value in node.outputs:
            fact = self._analysis.of(value)
            if fact.items is None:
                continue
            known = fact.known
            if known is None:
                self.has_symbolic_elements = True
            elif is_used(value) and not self._analysis.known.is_constant(value):
                self._edit.store(value, known)
        if node.graph is None or simplify(node, self._analysis, self._edit):
            return
        if node in self._analysis.scopes.parents:
            for inner in list(subgraphs_of(node)):
                self.graph(inner)
