"""Storing final results as tensors of the model, and the bytes that tensors and nodes take."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.scopes import Scopes
from onnxfold.editing import add_initializer, constant_node, inherit, replace
from onnxfold.onnx_ir_private import is_a
from onnxfold.pool import Buffer, BufferTensor, Pool
from onnxfold.pool.buffer import distinct

AROUND = 16
"""What a node, or a tensor, takes besides names and elements, bytes."""
# What a Constant node around a tensor takes.
_CONSTANT_NODE = 40


def needs_node(value: ir.Value, scopes: Scopes) -> bool:
    """Return whether a node's result cannot be an initializer once it is stored.

    A function has no initializers, and a subgraph's output must be made by a node.
    """
    scope = scopes.find(value.graph)
    if scope is None:
        return False
    return scope.in_function if scope.parent is None else value.is_graph_output()


def node_bytes(node: ir.Node) -> int:
    """Estimate the bytes that a node takes without its attributes."""
    names = [v.name or "" for v in (*node.inputs, *node.outputs) if v is not None]
    return AROUND + len(node.op_type) + len(node.name or "") + sum(map(len, names))


def bytes_if_stored(value: ir.Value, buffer: Buffer, scopes: Scopes) -> int:
    """Estimate the bytes that a node's result takes as a tensor of the model.

    Strings are computed for it, other elements are not.

    Raises:
        ComputationFailed: they cannot be computed.
    """
    data = buffer.nbytes
    if buffer.dtype == ir.DataType.STRING:
        once = distinct(buffer.array())
        data = sum(map(len, once.flat)) * buffer.size // max(1, once.size) + 2 * buffer.size
    around = AROUND + (_CONSTANT_NODE if needs_node(value, scopes) else 0)
    return data + around + len(value.name or "")


def data_bytes(tensor: ir.TensorProtocol | None) -> int:
    """Return the bytes that the elements of a tensor take in the file, or a few more."""
    if tensor is None:
        return 0
    if is_a(tensor, ir.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
        return int(tensor.raw.ByteSize())  # in a typed field a small number takes one byte
    if tensor.dtype == ir.DataType.STRING:
        return tensor.nbytes
    return storage.data_bytes(tensor.dtype, storage.sizes_of(tensor))


def materialize(values: Iterable[ir.Value], pool: Pool, scopes: Scopes) -> None:
    """Store each value: as an initializer of the graph its node is in, or in a Constant node.

    The nodes that made the values have no users afterwards.

    Args:
        values: Results of nodes, with buffers in the pool.
        pool: The pool.
        scopes: Those of the model.
    """
    for value in values:
        node = value.producer()
        assert node is not None and node.graph is not None
        graph = node.graph
        buffer = pool.buffer_of(value)
        tensor: ir.TensorProtocol = BufferTensor(buffer, value.name)
        if buffer.dtype == ir.DataType.STRING:
            texts = buffer.array().reshape(-1)
            encoded = [s if isinstance(s, bytes) else str(s).encode() for s in texts]
            tensor = ir.StringTensor(encoded, shape=ir.Shape(buffer.shape), name=value.name)
        if needs_node(value, scopes):
            constant = constant_node(tensor, node.name)
            node.prepend(constant)
            stored = constant.outputs[0]
        else:
            stored = add_initializer(graph, tensor)
        value.name = None  # what is stored has it now
        inherit(value, stored, declared=value.is_graph_output())
        replace(value, stored)
        pool.hold(buffer, None)  # it is rounded now
