"""Replace values that are constant up to a broadcast by their bases.

Examples are the default mask and the positions of a batch of any size: only the sizes of these
values depend on the inputs. The pass applies the ops that compute such values to the bases of the
operands instead. The results are constants, which constant propagation folds. Element-wise ops
then read the base, which broadcasts. All other ops read an Expand of the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.broadcasts import BroadcastAnalysis
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.api.options import Options
from onnxfold.ir.editing import insert, new_node
from onnxfold.ir.onnx_ir_private import Usage, is_used, nodes_of, uses
from onnxfold.ir.symbolic import NotKnown, Number
from onnxfold.ir.symbolic.fact import Shape
from onnxfold.ops import Trait, definition_of
from onnxfold.ops.bases import NO_AXES, Axes, BaseOfResult, Filled, OpOnBases
from onnxfold.passes.shapes.edit import Edit
from onnxfold.passes.shapes.sharing import unused_without, values_of_segments
from onnxfold.passes.shapes.vectors import Segment, ShapeVectors
from onnxfold.rewrite.matched import Matched, NodeOfValue

_EXPAND_OPSET = 8
"""The first opset with Expand."""


class DynamicBroadcasts(ir.passes.InPlacePass):
    """Replace values that are constant up to a broadcast by their bases.

    A replacement is applied only if it reduces the number of nodes. At level 1, it must also
    preserve all bits.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        facts = facts_of(model)
        edit = Edit(facts, self._options.keeps)
        for graph in facts.scopes.graphs():
            if facts.scopes.of(graph).opsets.get("", 1) >= _EXPAND_OPSET:
                _GraphRewrite(graph, facts, edit, self._is_accepted).run()
        return ir.passes.PassResult(model, modified=bool(edit.changes))

    def _is_accepted(self, facts: ModelFacts, node: ir.Node) -> bool:
        """Return whether the options allow a node to read bases of its operands."""
        if any(map(self._options.keeps, node.outputs)):
            return False
        return self._options.level > 1 or is_exact_on_bases(facts, node)


def is_exact_on_bases(facts: ModelFacts, node: ir.Node) -> bool:
    """Return whether a node is proved to compute the same bits from the bases of its operands."""
    value = NodeOfValue(Matched(node.outputs[0], facts))
    try:
        return definition_of(node).is_exact_on_bases(value)
    except NotKnown:
        return False


@dataclass
class _Replacement:
    """The replacement of a value that is constant up to a broadcast."""

    value: ir.Value
    base_uses: Sequence[Usage]
    """The uses that will read the base."""
    needs_expand: bool
    """Whether all other uses will read an Expand of the base. If False, they read the old value."""
    sizes: Sequence[Segment] = ()
    """The segments of the shape vector for the Expand. Empty without an Expand."""
    new_nodes: int = 0
    """A lower bound for the number of nodes that expand the base."""


class _Group(NamedTuple):
    """Connected nodes whose results are constant up to a broadcast."""

    nodes: list[ir.Node]
    """The nodes in topological order."""
    replacements: list[_Replacement]
    """The replacements of the results of these nodes, in the same order."""


class _GraphRewrite:
    """The rewrite of one graph."""

    def __init__(
        self,
        graph: ir.Graph,
        facts: ModelFacts,
        edit: Edit,
        accepts: Callable[[ModelFacts, ir.Node], bool],
    ) -> None:
        self._graph = graph
        self._facts = facts
        self._edit = edit
        self._accepts = accepts
        self._opset = facts.scopes.of(graph).opsets.get("", 1)
        self._analysis: BroadcastAnalysis = facts.new_broadcasts()
        self._vectors = ShapeVectors(facts.types, facts.constness, edit)
        self._bases: dict[ir.Value, ir.Value] = {}
        """The bases that were inserted, by value."""

    def run(self) -> None:
        """Replace values where this removes more nodes than it adds."""
        self._analysis.visit(self._graph, lambda node: self._accepts(self._facts, node))
        replacements = {
            value: replacement
            for node in self._analysis.nodes
            for value in node.outputs
            if (replacement := self._replacement(value, node)) is not None
        }
        groups = [
            group
            for group in self._groups(replacements.values())
            if self._removes_nodes(group.nodes, group.replacements)
            or any(self._removes_nodes(group.nodes, [one]) for one in group.replacements)
        ]
        expanded = [one for group in groups for one in group.replacements if one.needs_expand]
        if expanded:
            self._find_sizes({replacement.value: replacement for replacement in expanded})
        for group in groups:
            if not self._apply_if_shorter(group.nodes, group.replacements):
                for one in group.replacements:
                    self._apply_if_shorter(group.nodes, [one])

    def _apply_if_shorter(
        self, nodes: Sequence[ir.Node], replacements: Sequence[_Replacement]
    ) -> bool:
        """Replace results of nodes of a group if this removes more nodes than it adds.

        Returns whether the results were replaced.
        """
        # an earlier replacement may have removed a vector without other users
        required = [v for each in replacements for v in values_of_segments(each.sizes)]
        if any((value.producer() or value).graph is None for value in required):
            return False
        if not self._removes_nodes(nodes, replacements):
            return False
        self._apply(replacements)
        return True

    def _replacement(self, value: ir.Value, node: ir.Node) -> _Replacement | None:
        """Return the replacement of a result of ``node``; None if no use can be replaced."""
        other_uses = [use for use in uses(value) if use.node not in self._analysis.nodes]
        base_uses = [use for use in other_uses if self._may_read_base(use)]
        has_remaining_uses = len(base_uses) < len(other_uses) or value.is_graph_output()
        needs_expand = (
            has_remaining_uses
            and not self._is_expanded_constant(node)
            # the declared shape of a graph output may be wrong
            and self._facts.types.may_replace(value, value)
        )
        if not base_uses and not needs_expand:
            return None
        return _Replacement(value, base_uses, needs_expand, new_nodes=int(needs_expand))

    def _find_sizes(self, replacements: Mapping[ir.Value, _Replacement]) -> None:
        """Find the shape vectors with the fewest new nodes for the values that need an Expand.

        If a size of such a value is not available, its `needs_expand` becomes False.
        """
        self._vectors.enter(self._graph)
        for node in nodes_of(self._graph):
            for value in node.outputs:
                replacement = replacements.get(value)
                if replacement is not None:
                    replacement.sizes = self._sizes(value, node)
                    replacement.needs_expand = bool(replacement.sizes)
                    replacement.new_nodes = 1 + self._vectors.cost(replacement.sizes, node)
                if node not in self._analysis.nodes and is_used(value):
                    self._vectors.record(value, self._facts.types.of(value))
        self._vectors.leave()

    def _is_expanded_constant(self, node: ir.Node) -> bool:
        """Return whether a node already repeats the elements of a constant, like an Expand."""
        is_source = Trait.REPEATS in definition_of(node).traits
        return is_source and not any(v in self._analysis.broadcasts for v in node.inputs)

    def _may_read_base(self, use: Usage) -> bool:
        """Return whether a node has the same result if it reads the bases of its operands."""
        node = use.node
        types = self._facts.types
        if not self._facts.is_op(node, "") or len(node.outputs) > 1:
            return False
        if not definition_of(node).broadcasts(use.idx, self._opset):
            return False
        result = types.of(node.outputs[0]).shape
        shapes = [
            self._analysis.base_shape(v) if v in self._analysis.broadcasts else types.of(v).shape
            for v in node.inputs
            if v is not None
        ]
        return _always_broadcast_to(shapes, result) and self._accepts(self._facts, node)

    def _sizes(self, value: ir.Value, node: ir.Node) -> list[Segment]:
        """Return the segments of the vector for an Expand that takes the fewest new nodes.

        The result is empty if a size is not available.
        """
        shape = self._analysis.broadcasts[value].shape
        base = self._analysis.base_shape(value)
        smallest = [
            1 if size == of_base else size for size, of_base in zip(shape, base, strict=True)
        ]
        candidates = [
            self._vectors.segments(items, reuse, value)
            for items in (list(shape), smallest)
            for reuse in (True, False)
        ]
        available = [segments for segments in candidates if segments]
        return min(available, key=lambda segments: self._vectors.cost(segments, node), default=[])

    def _groups(self, replacements: Iterable[_Replacement]) -> list[_Group]:
        """Group the replacements by connected components of their nodes."""
        component_of: dict[ir.Node, list[ir.Node]] = {}
        for node in self._analysis.nodes:
            component = [node]
            for value in node.inputs:
                producer = value.producer() if value in self._analysis.broadcasts else None
                if producer is not None and component_of[producer] is not component:
                    component += component_of[producer]
                    for member in component_of[producer]:
                        component_of[member] = component
            component_of[node] = component
        position = {node: k for k, node in enumerate(self._analysis.nodes)}
        groups: dict[int, _Group] = {}
        for replacement in replacements:
            producer = replacement.value.producer()
            assert producer is not None
            nodes = component_of[producer]
            if id(nodes) not in groups:
                groups[id(nodes)] = _Group(sorted(nodes, key=position.__getitem__), [])
            groups[id(nodes)].replacements.append(replacement)
        return list(groups.values())

    def _removes_nodes(
        self, nodes: Sequence[ir.Node], replacements: Sequence[_Replacement]
    ) -> bool:
        """Return whether replacing results of nodes of a group removes more nodes than it adds."""
        replaced: set[Usage] = set()
        expanded: set[ir.Value] = set()
        for replacement in replacements:
            replaced.update(replacement.base_uses)
            if replacement.needs_expand:
                expanded.add(replacement.value)
        unused: set[ir.Node] = set()
        for node in reversed(nodes):
            if all(
                value in expanded
                or (
                    not value.is_graph_output()
                    and all(use.node in unused or use in replaced for use in uses(value))
                )
                for value in node.outputs
            ):
                unused.add(node)
        if not unused:
            return False
        required = [v for each in replacements for v in values_of_segments(each.sizes)]
        new_nodes = sum(replacement.new_nodes for replacement in replacements)
        return len(unused_without(unused, required)) > new_nodes

    def _apply(self, replacements: Sequence[_Replacement]) -> None:
        self._insert_bases([replacement.value for replacement in replacements])
        expanded = {each.value: self._expand(each) for each in replacements if each.needs_expand}
        for each in replacements:
            base = self._bases[each.value]
            for node, index in each.base_uses:
                if node.graph is not None and node.inputs[index] is each.value:
                    self._edit.set_input(node, index, base)
            if each.needs_expand:
                self._edit.replace(each.value, expanded[each.value])

    def _expand(self, replacement: _Replacement) -> ir.Value:
        """Insert an Expand of a base to the shape of the value, and return its result."""
        value = replacement.value
        node = value.producer()
        assert node is not None
        vector = self._vectors.assemble(replacement.sizes, value, node, is_last=False)
        expanded = self._insert(node, "Expand", [self._bases[value], vector])
        # nodes that compute the bases of other values may read the result
        self._analysis.broadcasts[expanded] = self._analysis.broadcasts[value]
        self._bases[expanded] = self._bases[value]
        return expanded

    def _insert_bases(self, values: Iterable[ir.Value]) -> None:
        """Insert nodes that compute the bases of values, and the bases that these nodes read."""
        required = {value.producer() for value in values}
        missing = []
        for node in reversed(self._analysis.nodes):
            if node not in required or node.outputs[0] in self._bases:
                continue
            missing.append(node)
            required.update(v.producer() for v in node.inputs if v in self._analysis.broadcasts)
        for node in reversed(missing):
            self._insert_bases_of(node, self._analysis.nodes[node])

    def _insert_bases_of(self, node: ir.Node, base: BaseOfResult) -> None:
        """Insert the nodes that compute the bases of the results of one node."""
        if isinstance(base, OpOnBases):
            new = new_node(
                self._facts.names,
                node.outputs[0].name or "value",
                node.op_type,
                self._operands(node, base),
                dict(node.attributes),
                domain=node.domain,
                outputs=len(node.outputs),
            )
            node.prepend(new)
            self._bases.update(zip(node.outputs, new.outputs, strict=True))
            return
        for value in node.outputs:
            shape = self._analysis.base_shape(value)
            if isinstance(base, Filled):
                element = base.element.reshape((1,) * len(shape))
                self._bases[value] = self._edit.constant(element, value, node)
                continue
            operand = node.inputs[base.operand]
            assert operand is not None
            broadcast = self._analysis.of(operand)
            assert broadcast is not None
            expanded = self._expanded_base(operand, base.full_axes, node)
            if broadcast.base_shape_with(base.full_axes) != shape:
                sizes = self._vector(shape, value, node)
                expanded = self._insert(node, "Reshape", [expanded, sizes])
            self._bases[value] = expanded

    def _operands(self, node: ir.Node, base: OpOnBases) -> list[ir.Value | None]:
        operands: list[ir.Value | None] = []
        for k in range(max(len(node.inputs), *(index + 1 for index in base.replaced), 0)):
            value = node.inputs[k] if k < len(node.inputs) else None
            if k in base.replaced:
                operands.append(self._edit.constant(base.replaced[k], node.outputs[0], node))
            elif value is None:
                operands.append(None)
            else:
                operands.append(self._expanded_base(value, base.full_axes.get(k, NO_AXES), node))
        return operands

    def _expanded_base(self, value: ir.Value, axes: Axes, node: ir.Node) -> ir.Value:
        """Return the base of a value, expanded to the value's size on some axes."""
        base = self._bases.get(value, value)
        if not axes:
            return base
        broadcast = self._analysis.broadcasts[value]
        shape = [size if axis in axes else 1 for axis, size in enumerate(broadcast.shape)]
        return self._insert(node, "Expand", [base, self._vector(shape, value, node)])

    def _vector(self, sizes: Iterable[Number], like: ir.Value, node: ir.Node) -> ir.Value:
        return self._edit.constant(np.array(list(sizes), np.int64), like, node)

    def _insert(self, node: ir.Node, op_type: str, inputs: list[ir.Value]) -> ir.Value:
        return insert(node, self._facts.names, op_type, inputs)


def _always_broadcast_to(shapes: Sequence[Shape | None], result: Shape | None) -> bool:
    """Return whether shapes broadcast to ``result`` in every run."""
    known_shapes = [shape for shape in shapes if shape is not None]
    if result is None or len(known_shapes) < len(shapes):
        return False
    if max(map(len, known_shapes)) != len(result):
        return False
    return all(
        {size, 1} == {1, *(shape[-k] for shape in known_shapes if len(shape) >= k)}
        for k, size in enumerate(reversed(result), 1)
    )
