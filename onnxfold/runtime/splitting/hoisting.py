"""What is the same in each turn of a Loop or Scan moves in front of it, if the body certainly runs.

There it is a part of the main graph like any other, and the cut decides whether runtime_fold makes
it. A body that may not run keeps its nodes: one of them could fail, or cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.editing import Names, set_input
from onnxfold.graphs import all_graphs, is_constant_node, subgraphs_of
from onnxfold.onnx_ir_private import uses
from onnxfold.runtime.bundles.manifest import StayingNode
from onnxfold.runtime.splitting.weights import number_of


def hoist(model: ir.Model, constants: Collection[ir.Value]) -> dict[ir.Node, StayingNode]:
    """Move nodes of bodies that depend on constants only into the main graph.

    Args:
        model: The model, sorted.
        constants: Inputs of its graph that are runtime constants.

    Returns:
        Nodes that depend on constants only and did not move, and why.
    """
    holders = [node for node in model.graph if subgraphs_of(node)]
    if not constants or not holders:
        return {}
    for node in holders:
        _read_what_is_carried(node)
    hoisting = _Hoisting(model, constants)
    for holder in holders:
        hoisting.visit(holder, holder, is_certain=True)
    return hoisting.stays


class _Hoisting:
    def __init__(self, model: ir.Model, constants: Collection[ir.Value]) -> None:
        self.stays: dict[ir.Node, StayingNode] = {}
        self._main = model.graph
        self._constness = ConstnessAnalysis(model, constants)
        self._names = Names(all_graphs(model))

    def visit(self, holder: ir.Node, node: ir.Node, *, is_certain: bool) -> None:
        """Move what can be moved out of the bodies of a node, and out of bodies in them.

        Args:
            holder: The node of the main graph that it belongs to.
            node: The node.
            is_certain: Whether it runs if the main graph does.
        """
        is_certain = is_certain and _runs_always(node)
        for body in subgraphs_of(node):
            for child in list(body):
                self.visit(holder, child, is_certain=is_certain)
                if not self._can_move(child):
                    continue
                if is_certain:
                    self._move(holder, body, child)
                else:
                    name = child.name or child.outputs[0].name or ""
                    reason = f"it is in a {node.op_type}, whose body may not run"
                    self.stays[child] = StayingNode(name, child.op_type, reason)

    def _can_move(self, node: ir.Node) -> bool:
        return (
            not is_constant_node(node)
            and not subgraphs_of(node)
            and self._constness.of_node(node) is Constness.RUNTIME
            and all(v.graph is self._main or v.is_initializer() for v in node.inputs if v)
        )

    def _move(self, holder: ir.Node, body: ir.Graph, node: ir.Node) -> None:
        for value in node.inputs:
            if value is not None and value.graph is not self._main:  # a constant of a body
                assert value.graph is not None and value.name is not None
                del value.graph.initializers[value.name]
                self._names.make_unique(value)
                self._main.initializers.add(value)
        for k, value in enumerate(body.outputs):
            if value.producer() is node:  # what a body gives out is made in it
                identity = ir.node("Identity", [value], num_outputs=1)
                output = body.outputs[k] = identity.outputs[0]
                output.name = self._names.fresh(value.name or "kept")
                output.type, output.shape = value.type, value.shape
                body.append(identity)
        body.remove(node)
        for value in node.outputs:
            self._names.make_unique(value)
        holder.prepend(node)


def _read_what_is_carried(node: ir.Node) -> None:
    """Have bodies read values from outside that a Loop or Scan hands on unchanged in each turn."""
    for given, inner in _carried(node):
        for user, index in list(uses(inner)):
            set_input(user, index, given)
    for body in subgraphs_of(node):
        for child in body:
            _read_what_is_carried(child)


def _carried(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the operands that are the same in each turn, and what the body calls them."""
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
    """Return whether the body of a node runs at least once; a Scan has something to scan."""
    if node.op_type == "Loop" and not node.domain:
        count, condition = (*node.inputs, None)[:2]
        return all(v is None or int(number_of(v) or 0) > 0 for v in (count, condition))
    return node.op_type == "Scan" and not node.domain
