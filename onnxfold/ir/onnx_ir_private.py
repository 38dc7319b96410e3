"""All uses of onnx-ir's private API, with their reasons. These uses are tested with onnx-ir 1.1."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterable, Iterator, MutableMapping
from typing import Any, TypeGuard, TypeVar

import onnx_ir as ir

# onnx-ir exports only a protocol for tensors. `TensorBase` implements the names, metadata and sizes
# of `ir.ExternalTensor` and similar classes. ``uses()`` returns `Usage` objects.
from onnx_ir._core import TensorBase as TensorBase
from onnx_ir._core import Usage as Usage

_GRAPHS = frozenset((ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS))
_Tensor = TypeVar("_Tensor", bound=TensorBase)


def is_a(tensor: object, kind: type[_Tensor]) -> TypeGuard[_Tensor]:
    """Return whether a tensor is an instance of a class.

    ``isinstance`` is slow for classes that implement protocols.
    """
    return kind in type(tensor).__mro__


def uses(value: ir.Value) -> Collection[Usage]:
    """Return the uses of a value without a copy, because copying many uses is slow."""
    return value._uses


def is_used(value: ir.Value) -> bool:
    """Return whether a value has uses or is an output of its graph."""
    return bool(value._uses) or value._is_graph_output


def is_unused(node: ir.Node) -> bool:
    """Return whether all results of a node are unused; see `is_used`."""
    # every pass calls this for every node, and a generator takes longer than the loop
    for value in node._outputs:  # noqa: SIM110
        if value._uses or value._is_graph_output:
            return False
    return True


def nodes_of(graph: ir.Graph) -> list[ir.Node]:
    """Return the current nodes of a graph in order, four times as fast as iterating over it."""
    nodes: list[ir.Node] = []
    end = graph._nodes._root
    link = end
    while (link := link.next) is not end:
        nodes.append(link.value)  # type: ignore[arg-type]
    return nodes


def nodes_in(graph: ir.Graph) -> list[ir.Node]:
    """Return the current nodes of a graph in any order. This is faster than `nodes_of`."""
    return [*map(operator.attrgetter("value"), graph._nodes._value_ids_to_boxes.values())]


def nodes_with_subgraphs(graph: ir.Graph) -> Collection[ir.Node]:
    """Return the nodes of a graph for which `has_subgraphs` is true, in order.

    Few graphs have such nodes, so all nodes are visited in order only if there are any.
    """
    parents = set[ir.Node]()
    for node in nodes_in(graph):
        for attribute in node._attributes.data.values():
            if attribute._type in _GRAPHS:
                parents.add(node)
    return [*filter(parents.__contains__, nodes_of(graph))] if parents else ()


def has_subgraphs(node: ir.Node) -> bool:
    """Return whether a node has attributes for graphs, including references.

    Reading the public properties of all attributes would be slow.
    """
    for attribute in node._attributes.data.values():  # noqa: SIM110, a generator takes longer
        if attribute._type in _GRAPHS:
            return True
    return False


def meta_entry(owner: ir.Node | ir.Value, key: str) -> Any:
    """Return an entry of the ``meta`` of a node or value; None if the entry does not exist.

    Reading ``meta`` would create four objects.
    """
    store = owner._metadata
    return None if store is None else store.data.get(key)


def metadata_of(owner: ir.Node | ir.Value) -> MutableMapping[str, str] | None:
    """Return the ``metadata_props`` of a node or value, or None if they do not exist yet."""
    return owner._metadata_props


def set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    """Replace an input of a node.

    ``ir.Node.replace_input_with`` visits all inputs of the node, which is too slow if thousands of
    inputs are replaced one after the other.
    """
    inputs = list(node._inputs)
    old = inputs[index]
    inputs[index] = value
    node._inputs = tuple(inputs)
    if old is not None:
        del old._uses[node, index]  # type: ignore[arg-type]  # a `Usage` is a tuple of these
    if value is not None:
        value._add_usage(node, index)
    if node.device_configurations and old is not None and old is not value:
        node._drop_sharding_for_value(old)


def detach_inputs(node: ir.Node) -> list[ir.Value]:
    """Remove all inputs of a node, and return its operands.

    This is faster than calling `set_input` for each input.
    """
    operands = []
    for k, value in enumerate(node._inputs):
        if value is not None:
            del value._uses[node, k]  # type: ignore[arg-type]  # a `Usage` is a tuple of these
            operands.append(value)
    node._inputs = ()
    return operands


def unlink(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes from their graphs, if any, without the checks of `ir.Graph.remove`."""
    for node in nodes:
        if node._graph is not None:
            node._graph._nodes.remove(node)
            node._graph = None


@contextlib.contextmanager
def dismantled(model: ir.Model) -> Iterator[None]:
    """Break the reference cycles of a model's main graph at the end of the context.

    Nodes and values refer to each other. Without this function, they would remain in memory until a
    garbage collection of all objects, which takes twice as long as this function. The function
    breaks the cycles of all nodes that the graph contains at the start or the end of the context.
    The model cannot be used afterwards. If the context raises an exception, no cycles are broken.
    """
    nodes = nodes_in(model.graph)
    yield
    nodes += nodes_in(model.graph)
    values = [*model.graph.inputs, *model.graph.initializers.data.values()]
    for node in nodes:
        values += node._outputs
        node._inputs = ()
        node._outputs = node._inputs
        node._graph = None
        node._attributes._owner = None  # type: ignore[assignment]
    for value in values:
        value._producer = None
        value._graph = None
        value._uses.clear()
    links = model.graph._nodes
    for link in (links._root, *links._value_ids_to_boxes.values()):
        del link.prev, link.next
    links._value_ids_to_boxes.clear()
    model.graph.initializers.data.clear()


def root_cause(error: BaseException) -> str:
    """Return the message of the exception that caused an error of onnx-ir.

    The result is the name of its class if the message is empty.
    """
    # The context also matters: onnx-ir's error reporting raises a TypeError for external tensors.
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__
