"""The end of constant propagation: final results become tensors of the model, their nodes go."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxfold.kernels.operation import subgraphs_of
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
            stored = _as_constant_node(node, tensor)
        else:
            stored = ir.Value(name=value.name, const_value=tensor)
        stored.type = value.type or ir.TensorType(tensor.dtype)
        stored.shape = ir.Shape(buffer.shape)
        stored.doc_string = value.doc_string
        stored.metadata_props.update(value.metadata_props)
        value.replace_all_uses_with(stored, replace_graph_outputs=True)
        if stored.producer() is None:
            assert stored.name is not None
            graph.initializers.add(stored)
        else:
            value.name = None  # the new node's output has the name now


def _as_tensor(buffer: Buffer, name: str | None) -> ir.TensorProtocol:
    if buffer.dtype != ir.DataType.STRING:
        return BufferTensor(buffer, name)
    encoded = [s if isinstance(s, bytes) else str(s).encode() for s in buffer.array().reshape(-1)]
    return ir.StringTensor(encoded, shape=ir.Shape(buffer.shape), name=name)


def _as_constant_node(node: ir.Node, tensor: ir.TensorProtocol) -> ir.Value:
    constant = ir.node("Constant", [], {"value": tensor}, name=node.name)
    constant.outputs[0].name = tensor.name
    constant.outputs[0].const_value = tensor
    node.prepend(constant)
    return constant.outputs[0]


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Take nodes out of their graphs; none of them may have users other than themselves."""
    by_graph: dict[ir.Graph, list[ir.Node]] = {}
    nodes = list(nodes)
    for node in nodes:  # a node of a subgraph may use one of an outer graph that goes as well
        for k in range(len(node.inputs)):
            node.replace_input_with(k, None)
    for node in nodes:
        for subgraph in subgraphs_of(node):
            _empty(subgraph)
        if node.graph is not None:
            by_graph.setdefault(node.graph, []).append(node)
    for graph, group in by_graph.items():
        graph.remove([node for node in group if node.graph is graph], safe=True)


def _empty(graph: ir.Graph) -> None:
    """Take everything out of a subgraph that goes, so that it uses no outer value any more."""
    graph.outputs.clear()
    nodes = list(graph)
    for node in nodes:
        for subgraph in subgraphs_of(node):
            _empty(subgraph)
    graph.remove(nodes, safe=True)
