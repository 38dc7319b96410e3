"""The two models that a model is cut into; names are those of the original."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxfold.analysis.constants import captured_values
from onnxfold.analysis.constness import record
from onnxfold.editing.names import Names
from onnxfold.editing.removal import is_used
from onnxfold.editing.replacement import inherit
from onnxfold.graphs import all_graphs
from onnxfold.passes.dead_code import RemoveDeadCode

RUNTIME_FOLD = "runtime_fold"


@dataclass(frozen=True)
class Described:
    """What is certain about a value that becomes part of an interface."""

    dtype: ir.DataType
    dims: tuple[int | str | None, ...] | None
    """Sizes, names of symbolic ones, None for what is not known; None if not even the rank is."""


def separate_outputs(model: ir.Model, constant: Iterable[ir.Value]) -> None:
    """Give each constant output of the model a node of its own that entry can run.

    A value cannot be both an input and an output of entry: the output becomes an Identity of it,
    and what the other nodes read gets a new name. What Identity does not take, sequences say, entry
    makes itself.
    """
    graph = model.graph
    used = Names(all_graphs(model))
    identity = onnx.defs.get_schema("Identity", graph.opset_imports.get("", 1), "")
    taken = identity.type_constraints[0].allowed_type_strs
    names = {
        v: v.name or ""
        for v in constant
        if v.producer() is not None
        and isinstance(v.type, ir.TensorType)
        and f"tensor({v.type.dtype.name.lower()})" in taken
    }
    for value, name in names.items():
        value.name = used.fresh(f"{name}_folded")
        node = ir.node("Identity", [value], num_outputs=1)
        output = node.outputs[0]
        output.name, output.type, output.shape = name, value.type, value.shape
        graph.append(node)
        for k, given in enumerate(graph.outputs):
            if given is value:
                graph.outputs[k] = output


def named_clone(model: ir.Model) -> ir.Model:
    """A copy; results without a name get one before, as a clone does not ask which are free."""
    names = Names(all_graphs(model))
    for graph in all_graphs(model):
        for value in (v for node in graph for v in node.outputs if v.name is None):
            value.name = names.fresh("unread")
    return model.clone()


def entry_of(
    model: ir.Model,
    cached: Mapping[str, Described],
    runtime_constants: Sequence[str],
) -> ir.Model:
    """The model that runs every time: what is cached are inputs of it, behind its own.

    Args:
        model: The model; not changed.
        cached: Names and types of the cached values.
        runtime_constants: Names of inputs; those that entry does not read are no inputs of it.
    """
    entry = named_clone(model)
    made = {v.name: v for node in entry.graph for v in node.outputs}
    for name, known in cached.items():
        old = made[name]
        new = ir.Value(name=name)
        inherit(old, new)
        _declare(new, known)
        old.replace_all_uses_with(new)
        old.name = None
        entry.graph.inputs.append(new)
    names = Names(all_graphs(entry))
    for name in cached:
        node = made[name].producer()
        assert node is not None
        names.complete(node)
    RemoveDeadCode()(entry)
    drop_unread(entry, [*runtime_constants, *cached])
    return entry


def drop_unread(part: ir.Model, constants: Sequence[str]) -> None:
    """Take out those of the constant inputs that nothing reads, and record the others."""
    inputs = {v.name for v in part.graph.inputs}
    unread = {n for n in constants if n in inputs and not _is_read(part.graph, n)}
    _remove_inputs(part.graph, unread)
    record(part, [n for n in constants if n in inputs - unread])


def fold_of(model: ir.Model, outputs: Mapping[str, Described]) -> ir.Model:
    """The model that makes the cached values, of the inputs that it needs for that.

    Args:
        model: The model; not changed.
        outputs: Names and types of the values that it is to make.
    """
    fold = named_clone(model)
    made = {v.name: v for node in fold.graph for v in node.outputs}
    fold.graph.name = RUNTIME_FOLD
    fold.graph.outputs.clear()
    for output, known in outputs.items():
        _declare(made[output], known)
        fold.graph.outputs.append(made[output])
    return _trimmed(fold)


def restricted(fold: ir.Model, outputs: Collection[str]) -> ir.Model:
    """The part of a runtime_fold that makes some of its outputs; the model itself is changed."""
    wanted = [v for v in fold.graph.outputs if v.name in outputs]
    fold.graph.outputs.clear()
    fold.graph.outputs.extend(wanted)
    return _trimmed(fold)


def _trimmed(fold: ir.Model) -> ir.Model:
    RemoveDeadCode()(fold)
    drop_unread(fold, [v.name for v in fold.graph.inputs if v.name])
    return fold


def components(fold: ir.Model) -> list[list[str]]:
    """Names of the outputs that are made together: those that share a node's result.

    Outputs that share nothing but weights and inputs are apart.
    """
    parent: dict[ir.Node, ir.Node] = {node: node for node in fold.graph}

    def find(node: ir.Node) -> ir.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in fold.graph:
        captured = captured_values(node) if node.attributes else []
        for value in (*node.inputs, *captured):
            producer = value.producer() if value is not None else None
            if producer is not None and producer in parent and producer.op_type != "Constant":
                parent[find(node)] = find(producer)
    groups: dict[object, list[str]] = {}
    for output in fold.graph.outputs:
        producer = output.producer()
        group = output if producer is None else find(producer)
        groups.setdefault(group, []).append(output.name or "")
    return list(groups.values())


def _declare(value: ir.Value, known: Described) -> None:
    value.type = ir.TensorType(known.dtype)
    if known.dims is not None:
        value.shape = ir.Shape(known.dims)


def _is_read(graph: ir.Graph, name: str) -> bool:
    value = next(v for v in graph.inputs if v.name == name)
    return is_used(value)


def _remove_inputs(graph: ir.Graph, names: set[str]) -> None:
    for value in [v for v in graph.inputs if v.name in names]:
        graph.inputs.remove(value)
        if value.name is not None and value.name in graph.initializers:
            del graph.initializers[value.name]
