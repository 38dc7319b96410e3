"""Storing final results as tensors of the model, and the bytes that tensors and nodes take."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.scopes import Scope, Scopes
from onnxfold.fold.pool import Buffer, BufferTensor, Pool
from onnxfold.ir import storage
from onnxfold.ir.editing import add_initializer, constant_node, inherit, replace
from onnxfold.ir.onnx_ir_private import is_a, metadata_of
from onnxfold.support.arrays import distinct

AROUND = 16
"""What a node, or a tensor, takes besides names and elements, bytes."""
# What a Constant node around a tensor takes.
_CONSTANT_NODE = 40
# Bytes of a metadata entry besides its key and text: tags and lengths of three protobuf fields.
_AROUND_ENTRY = 6


def needs_node(value: ir.Value, scope: Scope | None) -> bool:
    """Return whether a value cannot be an initializer once it is stored in a graph.

    A function has no initializers, and a subgraph's output must be made by a node.
    """
    if scope is None:
        return False
    return scope.in_function if scope.parent is None else value.is_graph_output()


def node_bytes(node: ir.Node) -> int:
    """Estimate the bytes that a node takes without its attributes."""
    names = [v.name or "" for v in (*node.inputs, *node.outputs) if v is not None]
    size = AROUND + len(node.op_type) + len(node.name or "") + sum(map(len, names))
    metadata = metadata_of(node)
    if metadata:
        size += sum(_AROUND_ENTRY + len(key) + len(text) for key, text in metadata.items())
    return size


def bytes_if_stored(value: ir.Value, buffer: Buffer, scope: Scope | None) -> int:
    """Estimate the bytes that a node's result takes as a tensor of the model.

    Strings are computed for it; raises ComputationFailed if they cannot be.
    """
    data = buffer.nbytes
    if buffer.dtype == ir.DataType.STRING:
        once = distinct(buffer.array())
        data = sum(map(len, once.flat)) * buffer.size // max(1, once.size) + 2 * buffer.size
    around = AROUND + _CONSTANT_NODE * needs_node(value, scope)
    return data + around + len(value.name or "")


def stored_bytes(value: ir.Value) -> int:
    """Return the bytes that a constant of the model takes, or a few more."""
    return data_bytes(storage.stored_tensor(value)) + AROUND + len(value.name or "")


def data_bytes(tensor: ir.TensorProtocol | None) -> int:
    """Return the bytes that the elements of a tensor take in the file, or a few more."""
    if tensor is None:
        return 0
    if is_a(tensor, ir.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
        return int(tensor.raw.ByteSize())  # in a typed field a small number takes one byte
    if tensor.dtype == ir.DataType.STRING:
        return tensor.nbytes
    return storage.data_bytes(tensor.dtype, storage.sizes_of(tensor))


def same_view(value: ir.Value, buffer: Buffer, scopes: Scopes) -> Hashable:
    """Return the same for equal views that one constant can be: all graphs can read it."""
    path = scopes.path(value.graph)
    return (path[-1], buffer.key()) if path and not value.is_graph_output() else value


def materialize(values: Iterable[ir.Value], pool: Pool, facts: ModelFacts) -> None:
    """Store results of nodes that have buffers in the pool, equal views once.

    The nodes that made them have no users afterwards.
    """
    groups: dict[Hashable, list[ir.Value]] = {}
    for value in values:
        key = same_view(value, pool.buffer_of(value), facts.scopes)
        groups.setdefault(key, []).append(value)
    for value, *others in groups.values():
        buffer = pool.buffer_of(value)
        tensor: ir.TensorProtocol = BufferTensor(buffer, value.name)
        if buffer.dtype == ir.DataType.STRING:
            texts = buffer.array().reshape(-1)
            encoded = [s if isinstance(s, bytes) else str(s).encode() for s in texts]
            tensor = ir.StringTensor(encoded, shape=ir.Shape(buffer.shape), name=value.name)
        store((value, *others), tensor, facts)
        for each in (value, *others):
            pool.hold(pool.buffer_of(each), None)  # it is rounded now


def store(values: Sequence[ir.Value], tensor: ir.TensorProtocol, facts: ModelFacts) -> ir.Value:
    """Replace results of nodes, or initializers, by a new constant; return it.

    It is an initializer or the result of a Constant node, in the innermost graph that holds all.
    """
    first = values[0]
    node = values[0].producer()
    graph = first.graph
    if len(values) > 1:
        paths = [facts.scopes.path(value.graph) for value in values]
        graph = next(each for each in paths[0] if all(each in path for path in paths))
    assert graph is not None
    if first.graph is not graph:
        facts.names.make_unique(first)
    name = first.name
    for value in values:
        if value.is_initializer() and value.graph is not None:
            value.graph.initializers.pop(value.name or "")
        value.name = None  # what is stored has it now
    tensor.name = name
    if needs_node(first, facts.scopes.of(graph)):
        before = node if node and len(values) == 1 else graph[0]
        node_name = facts.names.fresh(f"{name}/constant", for_node=True)
        before.prepend(constant := constant_node(tensor, node_name))
        stored = constant.outputs[0]
    else:
        stored = add_initializer(graph, tensor)
    for value in values:
        inherit(value, stored, declared=value.is_graph_output())
        replace(value, stored)
    return stored
