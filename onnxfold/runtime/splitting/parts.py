"""The two models that a model is cut into; names are those of the original."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxfold.analysis.constness import record
from onnxfold.editing import Names, inherit, is_used
from onnxfold.graphs import all_graphs, captured_values
from onnxfold.passes.dead_code import RemoveDeadCode
from onnxfold.runtime.bundles.manifest import Group, TensorInfo


def separate_outputs(model: ir.Model, constant: Iterable[ir.Value]) -> None:
    """Give each constant output of the model a node of its own that entry can run.

    A value cannot be both an input and an output of entry: the output becomes an Identity of it,
    and what the other nodes read gets a new name. What is no tensor, entry makes itself.
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


def name_unread(model: ir.Model) -> None:
    """Name results without a name: a copy of the model would not ask which names are free."""
    names = Names(all_graphs(model))
    for graph in all_graphs(model):
        for value in (v for node in graph for v in node.outputs if v.name is None):
            value.name = names.fresh("unread")


def entry_of(model: ir.Model, cached: Sequence[TensorInfo]) -> ir.Model:
    """Return the model that runs every time: what is cached are inputs of it, behind its own.

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
    name_unread(entry)
    return entry


def drop_unread(part: ir.Model, constants: Sequence[str]) -> None:
    """Take out those of the constant inputs that nothing reads, and record the others."""
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
    """Return the model that makes the cached values, of the inputs that it needs for that.

    Args:
        model: The model; not changed.
        cached: The values that it is to make.
    """
    made = {v.name: v for node in model.graph for v in node.outputs}
    fold = part_of(model, [made[info.name] for info in cached])
    fold.graph.name = "runtime_fold"
    for value, info in zip(fold.graph.outputs, cached, strict=True):
        _declare(value, info)
    return fold


def groups_of(fold: ir.Model) -> list[Group]:
    """Return the outputs of runtime_fold by the runtime constants that they read.

    Outputs that share a node's result are one component, and made together; outputs that share
    nothing but weights and inputs are apart.
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
    """Return what a node reads, in its subgraphs as well."""
    captured = captured_values(node) if node.attributes else []
    return [value for value in (*node.inputs, *captured) if value is not None]


def behind(outputs: Iterable[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]]:
    """Return the nodes that values are made by, and the inputs and weights that these read."""
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
    """Return the part of a model that makes some values, with the inputs that it reads.

    Args:
        model: The model; not changed.
        wanted: The values.
        defaults: Whether inputs that have a default value keep it.
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
