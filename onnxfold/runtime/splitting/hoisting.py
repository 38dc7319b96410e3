"""What is the same in each turn of a Loop or Scan, or in a branch of an If, moves in front of it.

There it is a part of the main graph like any other, and the cut decides whether runtime_fold makes
it. What then stays in entry, and came from a branch, goes back: the branch may not be taken.

A body may run not at all, so only nodes that cannot fail move, unless their body runs in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.failures import Failures
from onnxfold.editing import Names, set_input
from onnxfold.graphs import all_graphs, is_constant_node, subgraphs_of
from onnxfold.onnx_ir_private import uses
from onnxfold.runtime.bundles.manifest import StayingNode


class Hoisting:
    """Moves nodes of bodies that depend on constants only into the main graph.

    Args:
        model: The model, sorted.
        constants: Inputs of its graph that are runtime constants.

    Attributes:
        stays: Nodes that depend on constants only and did not move, and why.
    """

    def __init__(self, model: ir.Model, constants: Collection[ir.Value]) -> None:
        self.stays: dict[ir.Node, StayingNode] = {}
        self._main = model.graph
        self._of_branches: dict[ir.Node, ir.Graph] = {}
        holders = [node for node in model.graph if subgraphs_of(node)]
        if not constants or not holders:
            return
        for node in holders:
            _read_what_is_carried(node)
        self._constness = ConstnessAnalysis(model, constants)
        self._failures = Failures(model, _sizes(model))
        self._names = Names(all_graphs(model))
        for holder in holders:
            for body in subgraphs_of(holder):
                self._visit(holder, body, _runs_always(holder), holder.op_type == "If")

    def undo(self, stays: Collection[ir.Node]) -> None:
        """Put back what came from a branch and is not made by runtime_fold.

        Args:
            stays: Nodes that stay in entry.
        """
        for node, branch in reversed(self._of_branches.items()):
            users = [user for value in node.outputs for user, _ in uses(value)]
            inside = all(user.graph is not self._main for user in users)
            if node in stays and inside:
                self._main.remove(node)
                branch.insert_before(branch[0], node)  # what reads it is there

    def _visit(self, holder: ir.Node, body: ir.Graph, runs: bool, in_branch: bool) -> None:
        """Move what can be moved out of a body, and out of bodies in it.

        Args:
            holder: The node of the main graph that it belongs to.
            body: The body.
            runs: Whether it runs at least once, if the main graph runs.
            in_branch: Whether it is in a branch of an If.
        """
        for node in list(body):
            for inner in subgraphs_of(node):
                is_branch = in_branch or node.op_type == "If"
                self._visit(holder, inner, runs and _runs_always(node), is_branch)
            if self._can_move(node, runs):
                self._move(holder, body, node)
                if in_branch:
                    self._of_branches[node] = body

    def _can_move(self, node: ir.Node, runs: bool) -> bool:
        if is_constant_node(node) or subgraphs_of(node):
            return False
        if self._constness.of_node(node) is not Constness.RUNTIME:
            return False
        if not all(self._is_outside(v) for v in node.inputs if v is not None):
            return False
        reason = None if runs else self._why_it_may_fail(node)
        if reason is not None:
            name = node.name or node.outputs[0].name or ""
            reason = f"its body may not run, and it may fail: {reason}"
            self.stays[node] = StayingNode(name, node.op_type, reason)
        return reason is None

    def _why_it_may_fail(self, node: ir.Node) -> str | None:
        if node.domain not in ("", "ai.onnx"):
            return "it is no op of ONNX"
        if any(v is not None and v.dtype == ir.DataType.STRING for v in node.inputs):
            return "it reads strings"
        return self._failures.reason or self._failures.why(node)

    def _is_outside(self, value: ir.Value) -> bool:
        """Whether the main graph has the value, or can have it as it is a constant."""
        producer = value.producer()
        if producer is not None:
            return producer.graph is self._main or is_constant_node(producer)
        return value.graph is self._main or value.is_initializer()

    def _move(self, holder: ir.Node, body: ir.Graph, node: ir.Node) -> None:
        for value in node.inputs:
            if value is not None:
                self._bring(holder, value)
        self._keep_outputs(body, node.outputs)
        self._take(holder, node)

    def _bring(self, holder: ir.Node, value: ir.Value) -> None:
        """Have a constant in the main graph."""
        producer, graph = value.producer(), value.graph
        if graph is self._main or graph is None:
            return
        self._keep_outputs(graph, [value])
        if producer is not None:
            self._take(holder, producer)
        else:
            assert value.name is not None
            del graph.initializers[value.name]
            self._names.make_unique(value)
            self._main.initializers.add(value)

    def _take(self, holder: ir.Node, node: ir.Node) -> None:
        assert node.graph is not None
        node.graph.remove(node)
        for value in node.outputs:
            self._names.make_unique(value)
        holder.prepend(node)

    def _keep_outputs(self, body: ir.Graph, values: Sequence[ir.Value]) -> None:
        """What a body gives out is made in it."""
        for value in values:
            if value.is_graph_output():
                identity = ir.node("Identity", [value], num_outputs=1)
                output = identity.outputs[0]
                output.name = self._names.fresh(value.name or "kept")
                output.type, output.shape = value.type, value.shape
                for k, given in enumerate(body.outputs):
                    if given is value:
                        body.outputs[k] = output
                body.append(identity)


def _sizes(model: ir.Model) -> dict[ir.Value, list[str | int]]:
    """Sizes of a model's inputs as it declares them."""
    return {
        value: [
            d if isinstance(d, int) else d.value or f"{value.name}.{k}"
            for k, d in enumerate(value.shape)
        ]
        for value in model.graph.inputs
        if value.dtype is not None and value.shape is not None
    }


def _read_what_is_carried(node: ir.Node) -> None:
    """Bodies read a value from outside if a Loop or Scan hands it on from turn to turn as it is."""
    for given, inner in _carried(node):
        for user, index in list(uses(inner)):
            set_input(user, index, given)
    for body in subgraphs_of(node):
        for child in body:
            _read_what_is_carried(child)


def _carried(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Operands that are the same in each turn, and what the body calls them."""
    if node.domain or node.op_type not in ("Loop", "Scan"):
        return
    (body,) = subgraphs_of(node)
    before, first = (2, 1) if node.op_type == "Loop" else (0, 0)  # a count and a condition
    count = len(node.inputs) - before - node.attributes.get_int("num_scan_inputs", 0)
    for k in range(count):
        given, inner = node.inputs[before + k], body.inputs[before + k]
        output = body.outputs[first + k]
        maker = output.producer()
        is_copy = maker is not None and not maker.domain and maker.op_type == "Identity"
        kept = maker.inputs[0] if maker is not None and is_copy else output
        if given is not None and kept is inner:
            yield given, inner


def _runs_always(node: ir.Node) -> bool:
    """Whether the body of a node runs at least once."""
    if node.op_type == "Loop" and not node.domain:
        count, condition = (*node.inputs, None)[:2]
        return all(v is None or _number(v) > 0 for v in (count, condition))
    if node.op_type == "Scan" and not node.domain:
        last, axes = node.inputs[-1], node.attributes.get_ints("scan_input_axes", [0])
        size = None if last is None or last.shape is None else last.shape[axes[-1]]
        return isinstance(size, int) and size > 0
    return False


def _number(value: ir.Value) -> int:
    """The number that a value is in the file; 0 if it is not known."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return int(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else 0
