"""What makes a value change from run to run: the way from it up to the inputs of the graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.determinism import Determinism
from onnxfold.analysis.scopes import Scopes
from onnxfold.graphs import captured_values


@dataclass(frozen=True)
class Objection:
    """A node whose results change, or must be taken to, whatever it reads."""

    node: ir.Node
    reason: str


@dataclass(frozen=True)
class Sources:
    """All that makes a node run each time."""

    path: list[ir.Value]
    """A shortest way up to an input, or else to what changes by itself: a value that the node
    reads, what that is made of, and so on."""
    inputs: list[ir.Value]
    """Inputs of the main graph that the node depends on, in the graph's order."""
    objections: list[Objection]
    """Nodes on the way that no constant input would make run once, nearest first."""


class Dependence:
    """What the values of a model depend on that is not in its file.

    Calls of functions depend on those operands that the function makes the result of; what is in a
    function depends on the operands of all its calls. A node that holds graphs depends on what
    they capture, and what is in a loop's body on what the loop is given.

    Args:
        model: The model; its nodes are in order.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._functions = model.functions
        self._constness = ConstnessAnalysis(model, ())
        self._determinism = Determinism(model)
        self._scopes = Scopes(model)
        self._positions_of: dict[ir.OperatorIdentifier, list[list[int]]] = {}
        self._calls: dict[ir.Graph, list[ir.Node]] = {}
        for graph in self._scopes.graphs() if self._functions else ():
            for node in graph:
                function = self._functions.get(node.op_identifier())
                if function is not None:
                    self._calls.setdefault(function.graph, []).append(node)

    def is_variable(self, node: ir.Node) -> bool:
        """Whether the node has to run each time."""
        return self._constness.of_node(node) is Constness.VARIABLE

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """What the node, or a graph that it holds, reads and what changes from run to run."""
        return list(self._changing(_read_by(node)))

    def outermost(self, node: ir.Node) -> ir.Node:
        """The node of the main graph, or of a function, that holds the node; or itself."""
        scope = self._scopes.find(node.graph)
        return node if scope is None or scope.parent is None else self.outermost(scope.parent)

    def kind_of_input(self, value: ir.Value) -> str:
        """What a value is that no node makes, in a few words."""
        scope = self._scopes.find(value.graph)
        if scope is None or scope.graph is self._model.graph:
            return "input of the graph"
        if scope.parent is not None:
            return f"changes from turn to turn of {scope.parent.op_type} {scope.parent.name or ''}"
        return "input of a function"

    def sources(self, node: ir.Node) -> Sources:
        """What makes a node run each time, and the shortest way there."""
        graph_inputs = set(self._model.graph.inputs)
        found: dict[ir.Value, None] = {}  # nearest first
        other_end: ir.Value | None = None
        objections = list(self._objection(node))
        came_from: dict[ir.Value, ir.Value | None] = dict.fromkeys(self.operands(node))
        met = {node}
        pending = deque(came_from)
        while pending:
            value = pending.popleft()
            above = list(self._above(value))
            if value in graph_inputs:
                found[value] = None
            elif other_end is None and not above:
                other_end = value
            producer = value.producer()
            if producer is not None and producer not in met:
                met.add(producer)
                objections += self._objection(producer)
            for other in above:
                if other not in came_from:
                    came_from[other] = value
                    pending.append(other)
        end = next(iter(found), other_end)
        path = []
        while end is not None:
            path.append(end)
            end = came_from[end]
        return Sources(path[::-1], [v for v in self._model.graph.inputs if v in found], objections)

    def _objection(self, node: ir.Node) -> Iterator[Objection]:
        scope = self._scopes.find(node.graph)
        reason = self._determinism.objection(node, {} if scope is None else scope.opsets)
        if reason is not None:
            yield Objection(node, reason)

    def _above(self, value: ir.Value) -> Iterator[ir.Value]:
        """The values next to it that make it change."""
        made_of = self._made_of(value)
        scope = self._scopes.find(value.graph) if value.producer() is None else None
        if scope is not None and scope.in_function and scope.parent is None:
            position = list(scope.graph.inputs).index(value)
            for call in self._calls.get(scope.graph, ()):
                made_of += _at(call.inputs, [position])
        yield from self._changing(made_of)

    def _changing(self, values: Iterable[ir.Value]) -> Iterator[ir.Value]:
        return (v for v in values if self._constness.of(v) is Constness.VARIABLE)

    def _made_of(self, value: ir.Value) -> list[ir.Value]:
        """What a value is made of within the main graph, or within its function."""
        node = value.producer()
        if node is not None:
            function = self._functions.get(node.op_identifier()) if self._functions else None
            if function is None:
                return _read_by(node)
            return _at(node.inputs, self._positions(function)[node.outputs.index(value)])
        scope = self._scopes.find(value.graph)
        parent = None if scope is None else scope.parent
        # a loop gives it to its body
        return [] if parent is None else [v for v in parent.inputs if v is not None]

    def _positions(self, function: ir.Function) -> list[list[int]]:
        """For each output of a function, the positions of the inputs that it is made of."""
        key = function.identifier()
        if key not in self._positions_of:
            self._positions_of[key] = []
            inputs = {v: k for k, v in enumerate(function.inputs)}
            for output in function.outputs:
                behind = {output}
                pending = [output]
                while pending:
                    fresh = [v for v in self._made_of(pending.pop()) if v not in behind]
                    behind.update(fresh)
                    pending += fresh
                read = sorted(inputs[v] for v in behind if v in inputs)
                self._positions_of[key].append(read)
        return self._positions_of[key]


def _read_by(node: ir.Node) -> list[ir.Value]:
    captured = captured_values(node) if node.attributes else []
    return [value for value in (*node.inputs, *captured) if value is not None]


def _at(operands: Sequence[ir.Value | None], positions: Iterable[int]) -> list[ir.Value]:
    """Those operands; a call may leave out the last ones."""
    found = (operands[k] for k in positions if k < len(operands))
    return [value for value in found if value is not None]
