"""The end of constant propagation: final results become tensors of the model, their nodes go."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxfold.editing.constants import add_initializer, constant_node
from onnxfold.editing.replacement import inherit, replace
from onnxfold.pool import Buffer, BufferTensor, Pool


def materialize(
    values: Iterable[ir.Value],
    pool: Pool,
    functions: Collection[ir.Graph],
    subgraphs: Collection[ir.Graph],
) -> None:
    """Store each value: it becomes an initializer of the graph its node is in.

    A function has no initializers, and a subgraph's output must be made by a node: there the value
    becomes a Constant node's. The nodes that made the values have no users afterwards.

    Args:
        values: Results of nodes, with buffers in the pool.
        pool: The pool.
        functions: Graphs of functions.
        subgraphs: Graphs that are attributes of nodes.
    """
    for value in values:
        node = value.producer()
        assert node is not None and node.graph is not None
        graph = node.graph
        buffer = pool.buffer_of(value)
        tensor = _as_tensor(buffer, value.name)
        if graph in functions or (graph in subgraphs and value.is_graph_output()):
            constant = constant_node(tensor, node.name)
            node.prepend(constant)
            stored = constant.outputs[0]
        else:
            stored = add_initializer(graph, tensor)
        value.name = None  # what is stored has it now
        inherit(value, stored)
        replace(value, stored)


def _as_tensor(buffer: Buffer, name: str | None) -> ir.TensorProtocol:
    if buffer.dtype != ir.DataType.STRING:
        return BufferTensor(buffer, name)
    encoded = [s if isinstance(s, bytes) else str(s).encode() for s in buffer.array().reshape(-1)]
    return ir.StringTensor(encoded, shape=ir.Shape(buffer.shape), name=name)
