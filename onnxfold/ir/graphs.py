"""Queries of a model's graphs, nodes and dimensions, and texts of nodes, types and attributes."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.ir.onnx_ir_private import has_subgraphs, nodes_in, nodes_with_subgraphs

# The dtypes of the numeric attributes of Constant.
_NUMBER_DTYPES = {
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
}
_GRAPH = ir.AttributeType.GRAPH
_GRAPHS = ir.AttributeType.GRAPHS


def subgraphs_of(node: ir.Node) -> Sequence[ir.Graph]:
    """Return the subgraphs in a node's attributes."""
    return _graphs_in(node.attributes.values()) if has_subgraphs(node) else ()


def nodes_within(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield nodes and all nodes in their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs_of(node):
            yield from graph.all_nodes()


def has_references(node: ir.Node) -> bool:
    """Return whether a node or its subgraphs refer to an attribute of their function."""
    for attribute in node.attributes.data.values():
        if attribute.is_ref():
            return True
    if not has_subgraphs(node):
        return False
    return any(has_references(inner) for graph in subgraphs_of(node) for inner in graph)


def root_graphs(model: ir.Model) -> list[ir.Graph]:
    """Return the main graph of the model and the graphs of its functions.

    All other graphs are in attributes of nodes, or in default values of functions' attributes.
    """
    return [model.graph, *map(operator.attrgetter("graph"), model.functions.values())]


def all_graphs(model: ir.Model) -> list[ir.Graph]:
    """Return the graphs of the model and its functions, and all their subgraphs.

    Each graph precedes its subgraphs. Graphs in default values of functions' attributes are
    included.
    """
    graphs = root_graphs(model)
    for function in model.functions.values():
        graphs.extend(_graphs_in(function.attributes.values()))
    for graph in graphs:  # the list grows during the iteration
        for node in nodes_with_subgraphs(graph):
            graphs.extend(subgraphs_of(node))
    return graphs


def _graphs_in(attributes: Iterable[ir.Attr]) -> list[ir.Graph]:
    graphs: list[ir.Graph] = []
    for attribute in attributes:
        if attribute.type is _GRAPH and not attribute.is_ref():
            graphs.append(attribute.as_graph())
        elif attribute.type is _GRAPHS and not attribute.is_ref():
            graphs.extend(attribute.as_graphs())
    return graphs


def tensor_of(attribute: ir.Attr, name: str | None) -> ir.TensorProtocol | None:
    """Return the value of a ``Constant`` node's attribute as a tensor.

    The result is None for a reference to an attribute of a function. A tensor created from strings
    or numbers gets the name ``name``. A tensor in the attribute keeps its own name.

    Raises:
        KeyError: ``Constant`` has no such attribute.
    """
    if attribute.is_ref():
        return None
    kind = attribute.name
    value = attribute.value
    if kind == "value":
        tensor: ir.TensorProtocol = value  # as_tensor() checks a protocol, which is slow
        return tensor
    if kind in ("value_string", "value_strings"):
        strings = [value] if kind == "value_string" else list(value)
        shape = ir.Shape([] if kind == "value_string" else [len(strings)])
        encoded = [s if isinstance(s, bytes) else s.encode() for s in strings]
        return ir.StringTensor(encoded, shape=shape, name=name)
    return ir.Tensor(np.array(value, _NUMBER_DTYPES[kind]), name=name)


def is_constant_node(node: ir.Node) -> bool:
    """Return whether a node is a Constant of the ONNX domain."""
    return node.op_type == "Constant" and node.domain == ""


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node's subgraphs read but do not define, each once."""
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


def count_nodes(model: ir.Model) -> dict[str, int]:
    """Count the nodes by op name, including those in subgraphs and functions; see `op_name`."""
    identifiers: Counter[ir.OperatorIdentifier] = Counter()
    for graph in all_graphs(model):
        identifiers.update(map(ir.Node.op_identifier, nodes_in(graph)))
    counts: Counter[str] = Counter()
    for (domain, op_type, _), count in identifiers.items():
        counts[f"{domain}::{op_type}" if domain else op_type] += count
    return counts


def op_name(node: ir.Node) -> str:
    """Return the op type, or "domain::Op" for ops outside the ONNX domain."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def display_name(node: ir.Node) -> str:
    """Return the name of a node, or of its first named output if the node has no name.

    The result is empty if neither has a name.
    """
    return node.name or next((value.name for value in node.outputs if value.name), "")


def type_text(value: ir.Value) -> str:
    """Return the type and shape of a value as text, such as "float32[n,3]"; see `shaped`.

    The type and shape are those of the value's tensor, or the declared ones if it has no tensor.
    """
    tensor = value.const_value
    if tensor is not None:
        return shaped(tensor.dtype, tensor.shape)
    return shaped(value.type, value.shape)


def shaped(kind: ir.TypeProtocol | ir.DataType | str | None, shape: Iterable[object] | None) -> str:
    """Return a type and shape as text, such as "float32[n,3]".

    The text is empty if both are unknown. A dimension without a size or a name is "?".
    """
    name = kind if isinstance(kind, str) else _kind_text(kind)
    if shape is None:
        return name
    dims = (dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in shape)
    return f"{name}[{','.join('?' if dim is None else str(dim) for dim in dims)}]"


# Names of dimensions that onnx-ir evaluates as arithmetic expressions. Powers are excluded, because
# a name such as "9**9**9**9" would take forever.
_EXPRESSION = re.compile(r"(?!.*\*\*)[\w +\-*/%(),.]{1,200}")
# Names that exporters write for unknown sizes, such as "?", "-1" and "None".
_ANY_SIZE = re.compile(r"[\W\d]*|None")


def name_of(dim: int | ir.SymbolicDim) -> str | None:
    """Return the name of a dynamic dimension.

    The result is None for static and unnamed dimensions, and for names that mean an unknown size.
    """
    name = None if isinstance(dim, int) else dim.value
    return None if name is None or _ANY_SIZE.fullmatch(name) else name


def symbols_in(dim: ir.SymbolicDim) -> frozenset[str]:
    """Return the names in the expression of a dimension.

    A text that is not an expression is a single name. A dimension without a text has no names.
    """
    if dim.value is None:
        return frozenset()
    try:
        symbols = dim.free_symbols() if _EXPRESSION.fullmatch(dim.value) else frozenset()
    except (ValueError, ArithmeticError):
        symbols = frozenset()
    return symbols or frozenset([dim.value])


def dim_with(dim: ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim:
    """Return a dimension with sizes substituted for some names.

    The dimension is unchanged if the result would be negative or cannot be evaluated.
    """
    if dim.value is None or dim.value in sizes:
        return dim if dim.value is None else sizes[dim.value]
    if sizes.keys().isdisjoint(symbols_in(dim)):
        return dim
    try:
        result = dim.evaluate(sizes)
    except (ValueError, ArithmeticError):
        return dim
    return dim if isinstance(result, int) and result < 0 else result


def _kind_text(kind: ir.TypeProtocol | ir.DataType | None) -> str:
    """Return a type with the names of NumPy, such as "float32" or "sequence(int64)".

    The text is empty if the type is unknown.
    """
    if kind is None or kind is ir.DataType.UNDEFINED:
        return ""
    if isinstance(kind, ir.DataType):
        return "string" if kind is ir.DataType.STRING else kind.numpy().name
    name = _kind_text(kind.elem_type)
    is_tensor = isinstance(kind, ir.TensorType)
    return name if is_tensor else f"{type(kind).__name__.removesuffix('Type').lower()}({name})"


def attribute_text(attribute: ir.Attr) -> str:
    """Return an attribute as text.

    The text is the value, the type and shape of a tensor, or "..." for graphs. A reference to the
    attribute NAME of a function is "@NAME".
    """
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        return shaped(attribute.value.dtype, attribute.value.shape)  # as_tensor() is slow
    if attribute.type in (_GRAPH, _GRAPHS):
        return "..."
    return str(attribute.value)
