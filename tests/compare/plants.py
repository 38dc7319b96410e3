"""Differences that are planted into one node of a model, to be found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from mutants.mutations import (
    Impossible,
    Mutant,
    wrapped_into_function,
    wrapped_into_if,
    wrapped_into_loop,
)
from onnx import numpy_helper


def nodes_within(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of those in its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_within(attribute.g)


def all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of the main graph, of the graphs in nodes, and of functions."""
    inside = [node for function in model.functions for node in function.node]
    return [*nodes_within(model.graph), *inside]


def innermost(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of the first graph in a node or function that there is, else of the main graph."""
    for function in model.functions:
        return list(function.node)
    for node in nodes_within(model.graph):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                return [n for n in attribute.g.node if n.op_type != "Constant"]
    return list(model.graph.node)


def weight_by_an_ulp(m: Mutant) -> onnx.NodeProto:
    """One element of a weight that one node reads, directly."""
    read = [name for node in all_nodes(m.model) for name in node.input]
    tensor = m.choose(
        t for t in m.weights() if t.data_type == onnx.TensorProto.FLOAT and read.count(t.name) == 1
    )
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        raise Impossible
    place = int(np.abs(array).argmax())
    array.reshape(-1)[place] = np.nextafter(array.reshape(-1)[place], np.float32(np.inf))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return next(node for node in all_nodes(m.model) if tensor.name in node.input)


def attribute_changed(m: Mutant) -> onnx.NodeProto:
    """A number among the attributes of a node."""
    numbers = (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT)
    node, attribute = m.choose(
        (node, a)
        for node in innermost(m.model)
        for a in node.attribute
        if a.type in numbers and node.op_type != "Cast"
    )
    attribute.f *= 1.5
    attribute.i = 1 - attribute.i if attribute.i in (0, 1) else attribute.i - 1
    return node


def inputs_swapped(m: Mutant) -> onnx.NodeProto:
    """The first two inputs of a node."""
    node = m.choose(
        n
        for n in innermost(m.model)
        if len(n.input) == 2 and all(n.input) and n.op_type not in ("Add", "Mul")
    )
    node.input[:] = [node.input[1], node.input[0]]
    return node


def op_changed(m: Mutant) -> onnx.NodeProto:
    """A wrong op, as a wrong rule would make it."""
    others = {"Add": "Sub", "Mul": "Div", "Sqrt": "Exp", "Relu": "Neg", "Sigmoid": "Tanh"}
    node = m.choose(n for n in innermost(m.model) if n.op_type in others)
    node.op_type = others[node.op_type]
    return node


PLANTS = (weight_by_an_ulp, attribute_changed, inputs_swapped, op_changed)
WRAPS: tuple[Callable[[Mutant], None] | None, ...] = (
    None,
    wrapped_into_if,
    wrapped_into_function,
    wrapped_into_loop,
)
