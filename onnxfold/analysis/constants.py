"""Which values are constant as the model stands, and what their tensors are."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.graphs import has_references, subgraphs_of


def is_initialized(value: ir.Value) -> bool:
    """True for an initializer that nobody can override (it is not also a graph input)."""
    return value.const_value is not None and value.is_initializer() and not value.is_graph_input()


def tensor_of_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a ``Constant`` node; None where a function's caller supplies it."""
    value = node.attributes.data.get("value")  # the dict below: asked of every constant
    if value is not None and not value.is_ref():
        # Attr.as_tensor() checks a protocol at run time: slow for 10,000 of them
        tensor: ir.TensorProtocol = value.value
        return tensor
    if has_references(node):
        return None
    for name in ("value_string", "value_strings"):
        text = node.attributes.get(name)
        if text is not None:
            strings = [text.value] if name == "value_string" else list(text.value)
            shape = ir.Shape([] if name == "value_string" else [len(strings)])
            encoded = [s if isinstance(s, bytes) else s.encode() for s in strings]
            return ir.StringTensor(encoded, shape=shape, name=node.outputs[0].name)
    return ir.convenience.get_const_tensor(node.outputs[0])


def is_constant_node(node: ir.Node) -> bool:
    """True for ONNX's own Constant op."""
    return node.op_type == "Constant" and node.domain == ""


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Values of outer graphs that a node's subgraphs read, each once."""
    captured: dict[ir.Value, None] = {}

    def visit(graph: ir.Graph, inner: frozenset[ir.Graph]) -> None:
        inner = inner | {graph}
        for output in graph.outputs:
            if output.graph not in inner:
                captured[output] = None
        for child in graph:
            for value in child.inputs:
                if value is not None and value.graph not in inner:
                    captured[value] = None
            for subgraph in subgraphs_of(child):
                visit(subgraph, inner)

    for graph in subgraphs_of(node):
        visit(graph, frozenset())
    return list(captured)
