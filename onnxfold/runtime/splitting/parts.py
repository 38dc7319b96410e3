"""Split the model at the cut into entry and runtime_fold, after moving nodes out of loop bodies.

Nodes of a Loop or Scan body that are the same in each iteration move before the loop, if the body
certainly runs. There the cut treats them like other nodes of the main graph. A body that may not
run keeps its nodes: one of them could fail, or cost more than it saves.

Both models keep the names of the original.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis, record
from onnxfold.editing import Names, inherit, set_input
from onnxfold.graphs import all_graphs, captured_values, is_constant_node, subgraphs_of
from onnxfold.onnx_ir_private import is_used, uses
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.runtime.bundles.manifest import Group, StayingNode, TensorInfo


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
        """Move nodes out of the bodies of a node, and out of nested bodies.

        Args:
            holder: The node of the main graph that contains it.
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
            if value.producer() is node:  # the outputs of a body must be made in it
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
    """Replace values that a Loop or Scan carries unchanged by the values outside of the body."""
    if not node.domain and node.op_type in ("Loop", "Scan"):
        (body,) = subgraphs_of(node)
        before, first = (2, 1) if node.op_type == "Loop" else (0, 0)  # count and condition
        count = len(node.inputs) - before - node.attributes.get_int("num_scan_inputs", 0)
        for k in range(count):
            given, inner = node.inputs[before + k], body.inputs[before + k]
            output = body.outputs[first + k]
            maker = output.producer()
            is_copy = maker is not None and not maker.domain and maker.op_type == "Identity"
            kept = maker.inputs[0] if maker is not None and is_copy else output
            if given is not None and kept is inner:
                for user, index in list(uses(inner)):
                    set_input(user, index, given)
    for body in subgraphs_of(node):
        for child in body:
            _read_what_is_carried(child)


def _runs_always(node: ir.Node) -> bool:
    """Return whether the body of a node runs at least once; a Scan always has elements."""
    if node.op_type == "Loop" and not node.domain:
        count, condition = (*node.inputs, None)[:2]
        return all(v is None or int(number_of(v) or 0) > 0 for v in (count, condition))
    return node.op_type == "Scan" and not node.domain


def number_of(value: ir.Value | None) -> float | None:
    """Return the element of a constant with one element; None for other values."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().item())


def separate_outputs(model: ir.Model, constant: Iterable[ir.Value]) -> None:
    """Give each constant output of the model a separate node that entry can run.

    A value cannot be both an input and an output of entry: the output becomes an Identity of the
    value, which is renamed. Outputs that are no tensors are left to entry.
    """
    graph = model.graph
    used = Names(all_graphs(model))
    for value in dict.fromkeys(constant):
        if value.producer() is None or not isinstance(value.type, ir.TensorType):
            continue
        name = value.name
        value.name = used.fresh(f"{name}_folded")
        node = ir.node("Identity", [value], num_outputs=1)
        output = node.outputs[0]
        output.name, output.type, output.shape = name, value.type, value.shape
        graph.append(node)
        for k, given in enumerate(graph.outputs):
            if given is value:
                graph.outputs[k] = output


def name_unnamed_outputs(model: ir.Model) -> None:
    """Name the outputs without a name, as the names of a clone may collide."""
    names = Names(all_graphs(model))
    for graph in all_graphs(model):
        for value in (v for node in graph for v in node.outputs if v.name is None):
            value.name = names.fresh("unread")


def entry_of(model: ir.Model, cached: Sequence[TensorInfo]) -> ir.Model:
    """Return the model for every run, with the cached values as last inputs.

    Args:
        model: The model; not changed.
        cached: The cached values.
    """
    entry = model.clone()
    made = {v.name: v for node in entry.graph for v in node.outputs}
    for info in cached:
        old = made[info.name]
        new = ir.Value(name=info.name)
        inherit(old, new)
        _declare(new, info)
        old.replace_all_uses_with(new)
        old.name = None
        entry.graph.inputs.append(new)
    RemoveDeadCode()(entry)
    name_unnamed_outputs(entry)
    return entry


def remove_unused_inputs(part: ir.Model, constants: Sequence[str]) -> None:
    """Remove the constant inputs without users, and record the others."""
    graph = part.graph
    inputs = {value.name: value for value in graph.inputs}
    kept = []
    for name in constants:
        if name in inputs and is_used(inputs[name]):
            kept.append(name)
        elif name in inputs:
            graph.inputs.remove(inputs[name])
            graph.initializers.pop(name, None)
    record(part, kept)


def fold_of(model: ir.Model, cached: Sequence[TensorInfo]) -> ir.Model:
    """Return the model that makes the cached values, with only the inputs that they need.

    Args:
        model: The model; not changed.
        cached: The values that it makes.
    """
    made = {v.name: v for node in model.graph for v in node.outputs}
    fold = part_of(model, [made[info.name] for info in cached])
    fold.graph.name = "runtime_fold"
    for value, info in zip(fold.graph.outputs, cached, strict=True):
        _declare(value, info)
    return fold


def groups_of(fold: ir.Model) -> list[Group]:
    """Group the outputs of runtime_fold by the runtime constants that they read.

    Outputs that share a node form one component; sharing weights and inputs does not count.
    """
    components: list[tuple[set[ir.Node], set[ir.Value], list[str]]] = []
    for output in fold.graph.outputs:
        made, read = behind([output])
        made = {node for node in made if node.op_type != "Constant"}
        names: list[str] = []
        for other in [c for c in components if not made.isdisjoint(c[0])]:
            components.remove(other)
            made, read = made | other[0], read | other[1]
            names += other[2]
        components.append((made, read, [*names, output.name or ""]))
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for _, read, names in components:
        constants = (value.name or "" for value in fold.graph.inputs if value in read)
        groups.setdefault(tuple(constants), []).append(names)
    return [
        Group(list(constants), [name for names in members for name in names], members)
        for constants, members in groups.items()
    ]


def operands_of(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node and the values that its subgraphs capture."""
    captured = captured_values(node) if node.attributes else []
    return [value for value in (*node.inputs, *captured) if value is not None]


def behind(outputs: Iterable[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]]:
    """Return the nodes that compute values, and the inputs and weights that these nodes read."""
    nodes: set[ir.Node] = set()
    read: set[ir.Value] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            read.add(value)
        elif node not in nodes:
            nodes.add(node)
            pending.extend(operands_of(node))
    return nodes, read


def part_of(model: ir.Model, wanted: Sequence[ir.Value], *, defaults: bool = True) -> ir.Model:
    """Return the part of a model that computes some values, with the inputs that it needs.

    Args:
        model: The model; not changed.
        wanted: The values.
        defaults: Whether inputs keep their default values.
    """
    graph = model.graph
    nodes, read = behind(wanted)
    weights = [v for v in read if v.is_initializer() and (defaults or not v.is_graph_input())]
    view = ir.GraphView(
        [v for v in graph.inputs if v in read],
        wanted,
        nodes=[node for node in graph if node in nodes],
        initializers=sorted(weights, key=lambda v: v.name or ""),
        opset_imports=graph.opset_imports,
        name=graph.name,
    )
    part = view.clone()
    for value in () if defaults else part.inputs:
        value.const_value = None
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(part, ir_version=model.ir_version, functions=functions)


def _declare(value: ir.Value, info: TensorInfo) -> None:
    value.type = ir.TensorType(ir.DataType[info.dtype.upper()])
    if info.shape is not None:
        value.shape = ir.Shape(info.shape)
