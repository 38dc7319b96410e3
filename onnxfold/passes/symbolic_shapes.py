"""Fold shape arithmetic without fixing dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.symbolic_analysis import ASSUMPTIONS, SymbolicAnalysis
from onnxfold.api.options import Options
from onnxfold.ir.editing import remove_unused
from onnxfold.ir.graphs import has_references, root_graphs, subgraphs_of
from onnxfold.ir.onnx_ir_private import is_unused, is_used, nodes_of
from onnxfold.ir.symbolic import Algebra, Number
from onnxfold.ir.symbolic.fact import Shape
from onnxfold.ops import Application, Trait, Undecided, definition_of
from onnxfold.ops.movement import TO_THE_END, slice_ranges
from onnxfold.passes.context import RunContext
from onnxfold.passes.shapes.edit import Edit
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.passes.shapes.sharing import Sharing

# Maximum number of Reshape-like nodes between a value and an earlier value that can replace it.
_MAX_CHAIN_LENGTH = 8


class SymbolicShapes(ir.passes.InPlacePass):
    """Rewrite a model by its inferred shapes, without fixing dynamic dimensions.

    Shapes, sizes and comparisons that are equal in every run become constants. The shape of a
    Reshape or Expand, and the ends of a Slice, also become constants if numbers can express their
    dynamic sizes. In a Reshape, 0 and -1 can express such sizes. Equal shapes are computed once,
    shapes are assembled with the fewest nodes, and Reshape, Expand and Slice are removed if they
    have no effect.

    The dimensions that the options fix are fixed first.
    """

    def __init__(self, options: Options | None = None, *, run: RunContext | None = None) -> None:
        self._options = options or Options()
        self._run = run

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model.

        Raises:
            UsageError: A dimension or input of the options does not exist, or cannot have the given
                size.
        """
        options = self._options
        fixed = fix_dims(model, options.dims, options.input_shapes, options.keep_dims)
        facts = facts_of(model)
        analysis = facts.types
        analysis.run()
        if self._run is not None and analysis.algebra.atoms:
            self._run.result.assumptions = ASSUMPTIONS
        edit = Edit(facts, options.keeps)
        changed_nodes, analysis.journal = analysis.journal, set()
        for graph in root_graphs(model):
            if _simplify(graph, analysis, edit, changed_nodes):
                Sharing(analysis, facts.constness, edit).graph(graph)
        return ir.passes.PassResult(model, modified=bool(fixed or edit.changes))


def _simplify(
    graph: ir.Graph, analysis: SymbolicAnalysis, edit: Edit, changed_nodes: Collection[ir.Node]
) -> bool:
    """Simplify the nodes whose facts changed since the pass last ran (``changed_nodes``).

    The nodes are visited from last to first, so that only final results are stored. Returns whether
    one of these nodes computes with symbolic sizes.
    """
    has_sizes = False
    for node in reversed(nodes_of(graph)):
        if node not in changed_nodes or node.graph is not graph:
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
            elif is_used(value) and not analysis.constness.is_constant(value):
                edit.store(value, known)
        if node.graph is None or _simplify_operand(node, analysis, edit):
            continue
        if node in analysis.scopes.parents:
            for inner in list(subgraphs_of(node)):
                has_sizes |= _simplify(inner, analysis, edit, changed_nodes)
    return has_sizes


def _simplify_operand(node: ir.Node, analysis: SymbolicAnalysis, edit: Edit) -> bool:
    """Replace the operand of a Reshape, Expand or Slice by a constant, or replace the node.

    A node is replaced by an earlier value with the same elements and shape. The rewrite is valid
    for all sizes of valid inputs, including 0 and 1. Returns whether the node was changed.
    """
    if node.op_type not in _SHAPE_OPERANDS or node.domain or has_references(node):
        return False
    if node.op_identifier() in analysis.model.functions:
        return False
    value = node.inputs[0] if node.inputs else None
    position, elements_of = _SHAPE_OPERANDS[node.op_type]
    operand = node.inputs[position] if position < len(node.inputs) else None
    fact = None if operand is None else analysis.of(operand)
    is_symbolic = fact is not None and fact.is_symbolic
    if value is None:
        return False
    if node.op_type != "Slice":
        if _reuse_earlier_value(node, analysis, edit):
            return True
        if not is_symbolic:
            return False
    scope = analysis.scopes.find(node.graph)
    application = Application(
        node.op_type,
        [None if v is None else analysis.of(v) for v in node.inputs],
        {name: attribute.value for name, attribute in node.attributes.data.items()},
        1 if scope is None else scope.opsets.get("", 1),
        len(node.outputs),
        analysis.algebra,
    )
    try:
        elements = elements_of(application, analysis.of(node.outputs[0]).shape)
    except Undecided:
        return False
    if not elements:  # the Slice returns all elements of its operand
        return edit.replace(node.outputs[0], value)
    numbers = [n for n in elements if isinstance(n, int)]
    if operand is None or fact is None or not is_symbolic or len(numbers) < len(elements):
        return False
    if fact.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return False
    max_integer = np.iinfo(fact.dtype.numpy()).max
    array = np.array([min(n, max_integer) for n in numbers], fact.dtype.numpy())
    edit.set_input(node, position, edit.constant(array, operand, node))
    node.attributes.pop("allowzero", None)  # a 0 in the new operand copies a size of the input
    return True


def _reuse_earlier_value(node: ir.Node, analysis: SymbolicAnalysis, edit: Edit) -> bool:
    """Replace the result of a node by an earlier value with the same elements and shape.

    Returns whether the result was replaced.
    """
    shape = analysis.of(node.outputs[0]).shape
    value = node.inputs[0]
    for _ in range(_MAX_CHAIN_LENGTH):
        if value is None or shape is None:
            return False
        if analysis.of(value).shape == shape:
            return edit.replace(node.outputs[0], value)
        producer = value.producer()
        if producer is None or not _is_reshape(producer):
            return False
        value = producer.inputs[0]
    return False


def _reshape(application: Application, result: Shape | None) -> Sequence[Number]:
    """Return a constant operand with which Reshape returns the same shape.

    The elements are sizes, 0 for the input's size at the same index, and at most one -1. A new -1
    requires that the other sizes are positive, because -1 is undefined for an empty tensor. A -1 of
    the original operand remains valid, unless the node has ``allowzero``. The rewrite removes this
    attribute.

    Raises:
        Undecided: There is no such operand.
    """
    sizes = application.shape(0)
    target = application.numbers(1)
    algebra = application.algebra
    if result is None or 0 in result:
        raise Undecided
    template = [
        size if isinstance(size, int) else 0 if k < len(sizes) and sizes[k] == size else -1
        for k, size in enumerate(result)
    ]
    if -1 in template:
        axis = template.index(-1)
        other_sizes = [*result[:axis], *result[axis + 1 :]]
        is_original = target[axis] == -1 and not application.attributes.get("allowzero")
        if -1 in template[axis + 1 :]:
            raise Undecided
        if not is_original and not all(map(algebra.is_positive, other_sizes)):
            raise Undecided
    return template


def _expand(application: Application, result: Shape | None) -> Sequence[Number]:
    """Return the operand of an Expand, with 1 for each size that equals the size of the input.

    The result may contain symbolic sizes.
    """
    sizes = application.shape(0)
    target = application.numbers(1)
    offset = len(target) - len(sizes)
    return [
        1 if k >= offset and size == sizes[k - offset] else size for k, size in enumerate(target)
    ]


def _slice(application: Application, result: Shape | None) -> Sequence[Number]:
    """Return the ends of a Slice, with the largest integer for the end of an axis.

    The result is empty if the Slice returns all elements. It may contain symbolic ends.
    """
    sizes = application.shape(0)
    ranges = slice_ranges(application, len(sizes))
    ends = [
        _END_OF_AXIS if step > 0 and _reaches_end(application.algebra, end, sizes[axis]) else end
        for axis, (_, end, step) in ranges.items()
    ]
    is_complete = all((start, step) == (0, 1) for start, _, step in ranges.values())
    return [] if is_complete and set(ends) == {_END_OF_AXIS} else ends


_END_OF_AXIS = np.iinfo(np.int64).max


def _reaches_end(algebra: Algebra, end: Number, size: Number) -> bool:
    """Return whether an end is proved to be equal to or greater than the size."""
    if isinstance(end, int) and end >= TO_THE_END:
        return True
    if isinstance(end, int) and isinstance(size, int):
        return end >= size
    return algebra.low(algebra.sub(end, size)) >= 0


def _is_reshape(node: ir.Node) -> bool:
    """Return whether a node returns the elements of its first operand in the same order."""
    definition = definition_of(node)
    return Trait.FREE in definition.traits and definition.carries(0)


_SHAPE_OPERANDS: dict[str, tuple[int, Callable[[Application, Shape | None], Sequence[Number]]]] = {
    "Reshape": (1, _reshape),
    "Expand": (1, _expand),
    "Slice": (2, _slice),
}
"""The position of the shape operand of an op, and the function that returns its new elements."""
