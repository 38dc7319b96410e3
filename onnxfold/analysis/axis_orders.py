"""Find regions of nodes that could compute on transposed values with fewer transposes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.preflow import SINK, SOURCE, Network
from onnxfold.graphs import has_references
from onnxfold.kernels.anywhere import EXACT_ANYWHERE, VECTORIZED, is_misordered
from onnxfold.kernels.registry import Kind, Unfoldable, find
from onnxfold.onnx_ir_private import nodes_of, uses
from onnxfold.ops import Trait, ops

Perm = tuple[int, ...]
Keeps = Callable[[ir.Value], bool]

REDUCTIONS = ops(Trait.REDUCES)
_QUANTIZING = ("DequantizeLinear", "QuantizeLinear")
_BROADCASTING = 7  # the first opset with NumPy's broadcasting


def regions(
    graph: ir.Graph, facts: ModelFacts, keeps: Keeps, *, inexact: bool
) -> Iterator[AxisRegion]:
    """Yield the largest regions adjacent to transposes; the caller may change each of them.

    Args:
        graph: The graph to search.
        facts: The facts about the model.
        keeps: Returns whether the node that makes a value must stay.
        inexact: Whether the last bits may change.
    """
    seen: set[tuple[ir.Node, Perm]] = set()
    for node in nodes_of(graph):
        perm = None if node.graph is None else _perm(node, facts)
        if perm is None or perm == tuple(range(len(perm))):
            continue
        (before,), (after,) = node.inputs, node.outputs
        assert before is not None
        maker = before.producer()
        for new, starts in (
            (_inverse(perm), [use.node for use in uses(after)]),
            (perm, [] if maker is None else [maker]),
        ):
            for start in starts:
                if start.graph is graph and (start, new) not in seen:
                    region = AxisRegion(start, new, facts, keeps, inexact=inexact)
                    seen.update((each, new) for each in (start, *region.nodes))
                    yield region


def _perm(node: ir.Node, facts: ModelFacts) -> Perm | None:
    """Return the permutation of a Transpose; None for other nodes, or if it is unknown."""
    if node.op_type != "Transpose" or node.domain != "" or len(node.inputs) != 1:
        return None
    (operand,) = node.inputs
    rank = None if operand is None else facts.types.of(operand).rank
    perm: Perm | None = facts.attribute(node, "perm")
    is_known = rank is not None and perm is not None and sorted(perm) == list(range(rank))
    return perm if is_known else None


def _inverse(perm: Perm) -> Perm:
    return tuple(perm.index(axis) for axis in range(len(perm)))


class AxisRegion:
    """Connected nodes of one graph that could compute on transposed values.

    Args:
        start: A node of it; the region is empty if that node cannot change.
        perm: The permutation of the values.
        facts: The facts about the model.
        keeps: Returns whether the node that makes a value must stay.
        inexact: Whether the last bits may change.
    """

    def __init__(
        self, start: ir.Node, perm: Perm, facts: ModelFacts, keeps: Keeps, *, inexact: bool
    ) -> None:
        assert start.graph is not None
        self.graph = start.graph
        self._opset = facts.scopes.of(start.graph).opsets.get("", 1)
        self.perm = perm
        self.back = _inverse(perm)
        self.facts = facts
        self._keeps = keeps
        self._inexact = inexact
        self.nodes: dict[ir.Node, None] = {}
        """The nodes that can change."""
        reached = {start}
        seen: set[ir.Value] = set()  # a constant may have many users
        pending = [start]
        while pending:
            node = pending.pop()
            if not self._can_change(node):
                continue
            self.nodes[node] = None
            for value in (*self.operands(node), *self.results(node)):
                if value in seen:
                    continue
                seen.add(value)
                for near in (value.producer(), *(use.node for use in uses(value))):
                    if near is not None and near.graph is self.graph and near not in reached:
                        reached.add(near)
                        pending.append(near)

    # ---------------------------------------------------------------- nodes

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs of a node whose axes change."""
        is_first = node.op_type == "Split" or node.op_type in REDUCTIONS
        values = node.inputs[:1] if is_first else node.inputs
        return [v for v in values if v is not None and not self._is_single(v)]

    def results(self, node: ir.Node) -> Sequence[ir.Value]:
        """Return the outputs of a node whose axes change."""
        return () if drops_axes(node) else [v for v in node.outputs if not self._is_single(v)]

    def _is_single(self, value: ir.Value) -> bool:
        """Return whether all axes have size 1, so that their order is irrelevant."""
        shape = self.facts.types.of(value).shape
        return shape is not None and all(size == 1 for size in shape)

    def _can_change(self, node: ir.Node) -> bool:
        if (
            self._opset < _BROADCASTING
            or node.domain != ""
            or any(not v.name or self._keeps(v) for v in node.outputs)
            or has_references(node)
        ):
            return False
        types, rank = self.facts.types, len(self.perm)
        for value in self.operands(node):
            shape = types.of(value).shape
            if shape is None or len(shape) > rank:
                return False
            is_constant = self.facts.known.is_constant(value)
            if len(shape) < rank and not (
                is_constant and all(isinstance(size, int) and size for size in shape)
            ):
                return False
        if not drops_axes(node) and any(types.of(v).rank != rank for v in node.outputs):
            return False
        if node.op_type in ("Concat", "Split"):
            return self.axis(node) is not None
        if node.op_type in REDUCTIONS:
            return self._inexact and self._reduces(node)
        return self._is_elementwise(node)

    def _is_elementwise(self, node: ir.Node) -> bool:
        """Return whether the result for an element does not depend on its position."""
        dtypes = [None if v is None else self.facts.types.of(v).dtype for v in node.inputs]
        if not dtypes or dtypes[0] is None:
            return False
        if is_misordered(node.op_type, dtypes[0]):
            return False
        if node.op_type in EXACT_ANYWHERE:
            return True
        if node.op_type in _QUANTIZING:
            scales = [self.facts.types.of(v).shape for v in node.inputs[1:] if v is not None]
            return all(shape in ((), (1,)) for shape in scales)
        if node.op_type in VECTORIZED:
            return self._inexact or dtypes[0] == ir.DataType.FLOAT
        kernel = find(node.op_type, self._opset)
        if kernel is None or None in [d for d, v in zip(dtypes, node.inputs, strict=True) if v]:
            return False
        arrays = [None if d is None else d.numpy() for d in dtypes]
        attributes = {name: attribute.value for name, attribute in node.attributes.data.items()}
        try:
            return kernel.kind_for(arrays, attributes) is Kind.ELEMENTWISE
        except Unfoldable:
            return False

    def axis(self, node: ir.Node) -> int | None:
        """Return the index of the axis of a Concat or Split in the new order."""
        written, rank = self.facts.attribute(node, "axis"), len(self.perm)
        is_known = written is not None and -rank <= written < rank
        return self.perm.index(written % rank) if is_known else None

    def axes(self, node: ir.Node) -> list[int] | None:
        """Return the axes of a reduction, counted from the front; None if unknown or invalid."""
        rank = len(self.perm)
        if "axes" in node.attributes:
            written = list(node.attributes["axes"].as_ints())
        else:
            value = (*node.inputs, None)[1]
            array = None if value is None else self.facts.known.array(value)
            written = [] if array is None else [int(axis) for axis in array.ravel()]
        axes = {axis % rank for axis in written if -rank <= axis < rank}
        return sorted(axes) if axes and len(axes) == len(written) else None

    def _reduces(self, node: ir.Node) -> bool:
        """Return whether the axes of a reduction are known, and the remaining ones keep their
        order.
        """
        axes = self.axes(node)
        if axes is None:
            return False
        left = [axis for axis in self.perm if axis not in axes]
        return not drops_axes(node) or left == sorted(left)

    def is_inexact(self, node: ir.Node) -> bool:
        """Return whether the last bits of a node's results may depend on the order of the axes."""
        if node.op_type not in VECTORIZED:
            return node.op_type in REDUCTIONS
        (value,) = node.inputs
        return value is None or self.facts.types.of(value).dtype != ir.DataType.FLOAT

    # ---------------------------------------------------------------- the cut

    def is_entry(self, node: ir.Node | None) -> bool:
        """Return whether the node transposes a value that the region can use without it."""
        return (
            node is not None
            and _perm(node, self.facts) == self.back
            and not any(map(self._keeps, node.outputs))
            and any(use.node in self.nodes for use in uses(node.outputs[0]))
        )

    def is_exit(self, node: ir.Node) -> bool:
        """Return whether the node transposes a result as the region would."""
        return (
            node.graph is self.graph
            and _perm(node, self.facts) == self.perm
            and not self._keeps(node.outputs[0])
            and not self.is_entry(node)
        )

    def turned(self) -> list[ir.Node]:
        """Return the nodes to change, in order; none if that would not remove a transpose."""
        network = Network()
        vertex = {node: network.vertex() for node in self.nodes}
        values: dict[ir.Value, None] = {}
        for node in self.nodes:
            values.update(dict.fromkeys((*self.operands(node), *self.results(node))))
        for value in values:
            maker = value.producer()
            users = [use.node for use in uses(value)]
            if maker in vertex:
                start = vertex[maker]
            elif self.is_entry(maker):
                start = SINK
            elif self.facts.known.is_constant(value) and all(user in vertex for user in users):
                start = network.vertex()  # constant folding gives it either order
            else:
                start = SOURCE
            readers = set()
            for user in users:
                if user in vertex:
                    readers.add(vertex[user])
                elif self.is_exit(user):
                    readers.add(SINK)
                elif _perm(user, self.facts) is None or self.is_entry(user):
                    readers.add(SOURCE)
            if value.is_graph_output():
                readers.add(SOURCE)
            # one transpose if the maker keeps its order and a reader does not, or vice versa
            if start != SINK and readers - {SOURCE}:
                one = network.vertex()
                network.edge(start, one, 1)
                for reader in readers - {SOURCE}:
                    network.edge(one, reader, math.inf)
            if start != SOURCE and readers - {SINK}:
                one = network.vertex()
                network.edge(one, start, 1)
                for reader in readers - {SINK}:
                    network.edge(reader, one, math.inf)
        changing = network.before_sink()
        if changing.isdisjoint(vertex.values()):
            return []
        return [node for node in self.graph if vertex.get(node) in changing]


def drops_axes(node: ir.Node) -> bool:
    """Return whether the node is a reduction whose result has fewer axes."""
    keeps = node.attributes.get("keepdims")
    return node.op_type in REDUCTIONS and keeps is not None and keeps.as_int() == 0
