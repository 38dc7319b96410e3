"""The end of constant propagation: final results become tensors of the model, their nodes go."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.analysis.scopes import Scopes
from onnxfold.editing import add_initializer, constant_node, inherit, replace
from onnxfold.passes.folding.places import needs_node
from onnxfold.pool import Buffer, BufferTensor, Pool


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
        tensor = _as_tensor(buffer, value.name)
        if needs_node(value, scopes):
            constant = constant_node(tensor, node.name)
            node.prepend(constant)
            stored = constant.outputs[0]
        else:
            stored = add_initializer(graph, tensor)
        value.name = None  # what is stored has it now
        inherit(value, stored, declared=value.is_graph_output())
        replace(value, stored)
        pool.let_go(buffer)  # it is rounded now


def _as_tensor(buffer: Buffer, name: str | None) -> ir.TensorProtocol:
    if buffer.dtype != ir.DataType.STRING:
        return BufferTensor(buffer, name)
    encoded = [s if isinstance(s, bytes) else str(s).encode() for s in buffer.array().reshape(-1)]
    return ir.StringTensor(encoded, shape=ir.Shape(buffer.shape), name=name)
