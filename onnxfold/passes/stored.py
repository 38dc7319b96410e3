"""Storing results as tensors of the model, and estimating their bytes in a file."""

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

OVERHEAD = 16
"""Estimated bytes of a node or tensor in addition to names and elements."""
# Estimated bytes of a Constant node in addition to its tensor.
_CONSTANT_NODE = 40
# Bytes of a metadata entry in addition to key and text: tags and lengths of three protobuf fields.
_ENTRY_OVERHEAD = 6


def needs_node(value: ir.Value, scope: Scope | None) -> bool:
    """Return whether a stored value must be a Constant node instead of an initializer.

    A function has no initializers, and the output of a subgraph must be the result of a node.
    """
    if scope is None:
        return False
    return scope.in_function if scope.parent is None else value.is_graph_output()


def node_bytes(node: ir.Node) -> int:
    """Estimate the bytes of a node without its attributes."""
    names = [v.name or "" for v in (*node.inputs, *node.outputs) if v is not None]
    size = OVERHEAD + len(node.op_type) + len(node.name or "") + sum(map(len, names))
    metadata = metadata_of(node)
    if metadata:
        size += sum(_ENTRY_OVERHEAD + len(key) + len(text) for key, text in metadata.items())
    return size


def bytes_if_stored(value: ir.Value, buffer: Buffer, scope: Scope | None) -> int:
    """Estimate the bytes that a node's result takes in the file if it is stored as a tensor.

    Strings are computed, because their number of bytes is not known before.

    Raises:
        ComputationFailed: The strings cannot be computed.
    """
    data = buffer.nbytes
    if buffer.dtype == ir.DataType.STRING:
        elements = distinct(buffer.array())
        data = sum(map(len, elements.flat)) * buffer.size // max(1, elements.size) + 2 * buffer.size
    overhead = OVERHEAD + _CONSTANT_NODE * needs_node(value, scope)
    return data + overhead + len(value.name or "")


def stored_bytes(value: ir.Value) -> int:
    """Return an upper bound, within a few bytes, of the size of a stored constant in the file."""
    return data_bytes(storage.stored_tensor(value)) + OVERHEAD + len(value.name or "")


def data_bytes(tensor: ir.TensorProtocol | None) -> int:
    """Return an upper bound, within a few bytes, of the size of a tensor's elements in the file.

    The result is 0 for None.
    """
    if tensor is None:
        return 0
    if is_a(tensor, ir.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
        return int(tensor.raw.ByteSize())  # typed fields store integers with variable lengths
    if tensor.dtype == ir.DataType.STRING:
        return tensor.nbytes
    return storage.data_bytes(tensor.dtype, storage.sizes_of(tensor))


def view_key(value: ir.Value, buffer: Buffer, scopes: Scopes) -> Hashable:
    """Return a key that is equal for values that can be stored as one constant.

    These are equal views of the same bytes in graphs that have a common outer graph. A graph output
    has its own key, because it keeps its name.
    """
    path = scopes.path(value.graph)
    return (path[-1], buffer.key()) if path and not value.is_graph_output() else value


def materialize(values: Iterable[ir.Value], pool: Pool, facts: ModelFacts) -> None:
    """Store results of nodes as tensors of their buffers. Equal views are stored once.

    All values must be bound to buffers of the pool. The nodes that computed the results have no
    users afterwards.
    """
    groups: dict[Hashable, list[ir.Value]] = {}
    for value in values:
        key = view_key(value, pool.buffer_of(value), facts.scopes)
        groups.setdefault(key, []).append(value)
    for value, *equal_views in groups.values():
        buffer = pool.buffer_of(value)
        tensor: ir.TensorProtocol = BufferTensor(buffer, value.name)
        if buffer.dtype == ir.DataType.STRING:
            strings = buffer.array().reshape(-1)
            encoded = [s if isinstance(s, bytes) else str(s).encode() for s in strings]
            tensor = ir.StringTensor(encoded, shape=ir.Shape(buffer.shape), name=value.name)
        store((value, *equal_views), tensor, facts)
        for each in (value, *equal_views):
            pool.hold(pool.buffer_of(each), None)  # release the wide value, which was rounded


def store(values: Sequence[ir.Value], tensor: ir.TensorProtocol, facts: ModelFacts) -> ir.Value:
    """Replace results of nodes, or initializers, by a new constant, and return its value.

    The constant is an initializer or the result of a Constant node, in the innermost graph that
    contains all values. It has the name of the first value, unless another value of the model has
    the same name.
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
        value.name = None  # the constant has the name now
    tensor.name = name
    if needs_node(first, facts.scopes.of(graph)):
        successor = node if node and len(values) == 1 else graph[0]
        node_name = facts.names.fresh(f"{name}/constant", for_node=True)
        successor.prepend(constant := constant_node(tensor, node_name))
        stored = constant.outputs[0]
    else:
        stored = add_initializer(graph, tensor)
    for value in values:
        inherit(value, stored, declared=value.is_graph_output())
        replace(value, stored)
    return stored
