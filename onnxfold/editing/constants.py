"""New constants of a graph."""

from __future__ import annotations

import onnx_ir as ir


def constant_node(tensor: ir.TensorProtocol, name: str | None) -> ir.Node:
    """A Constant node, in no graph yet; its result is named and typed like the tensor.

    Args:
        tensor: The elements.
        name: Of the node.
    """
    node = ir.Node(
        "",
        "Constant",
        [],
        [ir.AttrTensor("value", tensor)],
        num_outputs=1,
        name=name or "",  # onnx-ir makes one up if there is none
    )
    _describe(node.outputs[0], tensor)
    return node


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """A new initializer of a graph, named and typed like the tensor."""
    value = ir.Value()
    _describe(value, tensor)
    graph.initializers.add(value)
    return value


def _describe(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    value.name = tensor.name
    value.const_value = tensor
    value.type = ir.TensorType(tensor.dtype)
    value.shape = ir.Shape(tensor.shape.numpy())
