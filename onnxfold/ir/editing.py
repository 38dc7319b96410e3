"""Functions that edit graphs: they name, insert, replace, move and remove nodes and values.

onnx-ir records the uses of every value. Nodes in the subgraphs of a removed node must not remain
users of outer values, so the subgraphs are emptied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.ir.graphs import all_graphs, subgraphs_of
from onnxfold.ir.onnx_ir_private import (
    detach_inputs,
    is_unused,
    metadata_of,
    nodes_in,
    unlink,
    uses,
)
from onnxfold.ir.onnx_ir_private import set_input as set_input

_HEADER = (
    "ir_version",
    "producer_name",
    "producer_version",
    "domain",
    "model_version",
    "doc_string",
    "device_configurations",
)
"""The attributes that `take_content` assigns. It also moves the graph, functions and metadata."""


class Names:
    """The names in use in all graphs of a model.

    New names are unique in all graphs. A node that moves to another graph keeps its name, unless a
    node of that graph has the same name (`make_node_unique`).
    """

    def __init__(self, graphs: Iterable[ir.Graph]) -> None:
        self._values: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._nodes_in: dict[ir.Graph, set[str]] = {}
        self._next: dict[str, int] = {}
        for graph in graphs:
            self._values.update([v.name for v in graph.inputs if v.name])
            self._values.update(graph.initializers.keys())
            nodes = nodes_in(graph)
            self._nodes.update([name for node in nodes if (name := node.name)])
            self._values.update([name for n in nodes for v in n.outputs if (name := v.name)])

    def fresh(self, name_hint: str, *, for_node: bool = False) -> str:
        """Return a new name of a value or node that begins with ``name_hint``.

        The new name of a node is empty if no node of the model had a name.
        """
        if for_node and not self._nodes:
            return ""
        used_names = self._nodes if for_node else self._values
        name = name_hint
        while name in used_names:
            count = self._next.get(name_hint, 1)
            self._next[name_hint] = count + 1
            name = f"{name_hint}_{count}"
        used_names[name] = 1
        return name

    def make_unique(self, value: ir.Value) -> None:
        """Rename a value of the model if another value has the same name."""
        name = value.name
        if name and self._values[name] > 1:
            self._values[name] -= 1
            value.name = self.fresh(name)

    def nodes_in(self, graph: ir.Graph) -> set[str]:
        """Return the names of the nodes of a graph, for `make_node_unique`.

        The set may include names of removed nodes. The first call for a graph must precede the move
        of nodes to the graph.
        """
        if graph not in self._nodes_in:
            self._nodes_in[graph] = {name for node in nodes_in(graph) if (name := node.name)}
        return self._nodes_in[graph]

    def make_node_unique(self, node: ir.Node, used_names: set[str]) -> None:
        """Rename a node that moves to a graph if ``used_names`` contains its name.

        ``used_names`` contains the names of the nodes of that graph; the final name is added. A
        node without a name is not changed.
        """
        if not node.name:
            return
        if node.name in used_names:
            node.name = self.fresh(node.name, for_node=True)
        used_names.add(node.name)


def make_node_names_unique(model: ir.Model) -> None:
    """Rename nodes that have the name of an earlier node of the same graph.

    onnxruntime rejects a graph in which two nodes have the same name. Nodes of different graphs,
    such as a graph and its subgraphs, may have the same name. Nodes may also have no names.
    """
    graphs = all_graphs(model)
    names: Names | None = None
    for graph in graphs:
        node_names = [name for node in nodes_in(graph) if (name := node.name)]
        if len(node_names) == len(set(node_names)):
            continue
        names = names or Names(graphs)
        used_names = set[str]()
        for node in graph:
            names.make_node_unique(node, used_names)


def take_content(model: ir.Model, source: ir.Model) -> None:
    """Move the content of ``source`` to ``model``, and discard the old content of ``model``.

    ``model`` keeps its graph object, its ``meta``, and the ``meta`` of its graph. The graph of
    ``source`` is empty afterwards.
    """
    for name in _HEADER:
        setattr(model, name, getattr(source, name))
    model.metadata_props.clear()
    model.metadata_props.update(source.metadata_props)
    model.functions.clear()
    model.functions.update(source.functions)

    graph = model.graph
    source_graph = source.graph
    graph.name = source_graph.name
    graph.doc_string = source_graph.doc_string
    graph.opset_imports.clear()
    graph.opset_imports.update(source_graph.opset_imports)
    graph.metadata_props.clear()
    graph.metadata_props.update(source_graph.metadata_props)

    inputs = list(source_graph.inputs)
    outputs = list(source_graph.outputs)
    initializers = list(source_graph.initializers.values())
    nodes = list(source_graph)
    for emptied in (graph, source_graph):
        emptied.outputs.clear()
        emptied.inputs.clear()
        emptied.initializers.clear()
        emptied.remove(list(emptied))
    graph.inputs.extend(inputs)
    for value in initializers:
        graph.initializers.add(value)
    graph.extend(nodes)
    graph.outputs.extend(outputs)


def values_of(graph: ir.Graph) -> list[ir.Value]:
    """Return the inputs and initializers of a graph and the results of its nodes.

    The list contains an initializer that is also an input twice.
    """
    values = [*graph.inputs, *graph.initializers.data.values()]
    for node in nodes_in(graph):
        values += node.outputs
    return values


def replace(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of ``old`` and its occurrences in the outputs of its graph by ``new``."""
    while old.is_graph_output():
        assert old.graph is not None
        outputs = old.graph.outputs
        # the search in the underlying list avoids a call of onnx-ir for each output
        outputs[outputs.data.index(old)] = new  # type: ignore[attr-defined]  # a UserList
    for user, index in list(uses(old)):
        set_input(user, index, new)


def take_over(old: ir.Value, new: ir.Value, *, declared: bool = False) -> None:
    """Replace ``old`` by ``new``, which gets the name and the uses of ``old``.

    Both values must have the same elements. ``new`` also gets the type, shape, doc string and
    metadata that it lacks. With ``declared``, the type and shape of ``old`` belong to the interface
    and take precedence.
    """
    inherit(old, new, declared=declared)
    name = old.name
    old.name = None
    new.name = name
    replace(old, new)


def can_take_name(old: ir.Value, new: ir.Value, keeps: Callable[[ir.Value], bool]) -> bool:
    """Return whether the value ``new`` can get the name of the graph output ``old``.

    ``new`` must be the result of a node in the same graph, and must not be an output itself.
    ``keeps`` returns whether a value must keep its own name.
    """
    is_result = new.producer() is not None and new.graph is old.graph
    return is_result and not new.is_graph_output() and not keeps(new)


def inherit(old: ir.Value, new: ir.Value, *, declared: bool = False) -> None:
    """Copy the type, shape, doc string and metadata that ``new`` lacks; see :func:`take_over`."""
    if new.type is None or (declared and old.type is not None):
        new.type = old.type
    if new.shape is None or (declared and old.shape is not None):
        new.shape = old.shape
    new.doc_string = new.doc_string or old.doc_string
    for key, text in (metadata_of(old) or {}).items():
        new.metadata_props.setdefault(key, text)


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes from their graphs.

    Only the removed nodes may use their results, and no result may be an output of a graph.
    """
    nodes = list(nodes)
    for node in nodes:  # a node in a subgraph may use a removed node of an outer graph
        _detach(node)
    assert all(map(is_unused, nodes))
    unlink(nodes)


def remove_unused(
    nodes: Iterable[ir.Node | None], keeps: Callable[[ir.Value], bool] | None = None
) -> list[ir.Value]:
    """Remove unused nodes, and the nodes that become unused by that.

    Args:
        nodes: The nodes to check. None and nodes outside of graphs are ignored.
        keeps: Returns True for results whose nodes must be kept.

    Returns:
        The values that lost a use, each once, including results of removed nodes.
    """
    affected: dict[ir.Value, None] = {}
    removed: dict[ir.Node, None] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node is None or node in removed or node.graph is None or not is_unused(node):
            continue
        if keeps is not None and any(map(keeps, node.outputs)):
            continue
        removed[node] = None
        for value in _detach(node):
            affected[value] = None
            if not uses(value):
                pending.append(value.producer())
    unlink(removed)
    return list(affected)


def remove_foreign_users(model: ir.Model) -> None:
    """Remove uses of values by nodes outside the model.

    Another library may have removed an If, for example, without the uses in its branches.
    """
    graphs = set(all_graphs(model))
    for graph in graphs:
        for value in values_of(graph):
            for user, position in [*uses(value)]:
                if user.graph not in graphs:
                    set_input(user, position, None)


def _detach(node: ir.Node) -> list[ir.Value]:
    """Remove the inputs of a node and the contents of its subgraphs.

    Returns:
        The operands of the node and of all nodes in its subgraphs.
    """
    operands = detach_inputs(node)
    for subgraph in subgraphs_of(node):
        subgraph.outputs.clear()
        nodes = list(subgraph)
        for inner in nodes:
            operands.extend(_detach(inner))
        subgraph.remove(nodes, safe=True)
    return operands


def insert(
    before: ir.Node,
    names: Names,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    name_hint: str | None = None,
    domain: str = "",
) -> ir.Value:
    """Insert a new node before another one, and return its result; see :func:`new_node`.

    New names begin with ``name_hint``, by default the name of the first result of ``before``.
    """
    name_hint = name_hint or before.outputs[0].name or "value"
    node = new_node(names, name_hint, op_type, inputs, attributes, domain=domain)
    before.prepend(node)
    return node.outputs[0]


class NodeInserter:
    """An inserter of nodes: ``inserter.Concat(x, y, axis=0)`` returns the result.

    Nodes are inserted before the node ``before``. The names of new nodes and results begin with the
    name of the first result of ``before``.
    """

    def __init__(self, before: ir.Node, names: Names) -> None:
        self._before = before
        self._names = names

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        def insert_op(*inputs: ir.Value | None, **attributes: Any) -> ir.Value:
            return insert(self._before, self._names, op_type, inputs, attributes)

        return insert_op

    def constant(self, elements: Any) -> ir.Value:
        """Insert a constant, and return its value; see `insert_constant`."""
        return insert_constant(self._before, self._names, elements)


def new_node(
    names: Names,
    name_hint: str,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    outputs: int = 1,
) -> ir.Node:
    """Return a new node that is not in a graph yet.

    Args:
        names: The names in use.
        name_hint: The prefix of the names of the node and its results.
        op_type: The type of the op.
        inputs: The operands, with None for each omitted one.
        attributes: Numbers, lists, strings or attributes of onnx-ir, by name.
        domain: The domain of the op.
        outputs: The number of results.
    """
    prefix = f"{name_hint}/{op_type}"
    name = names.fresh(prefix, for_node=True)
    node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=name)
    for value in node.outputs:
        value.name = names.fresh(prefix)
    return node


def insert_constant(
    before: ir.Node,
    names: Names,
    array: npt.NDArray[Any] | Sequence[int],
    *,
    name_hint: str | None = None,
    in_function: bool = False,
) -> ir.Value:
    """Insert a new constant that ``before`` and all later nodes can read, and return its value.

    A list becomes a vector of int64. The constant is an initializer. With ``in_function``, the
    constant is the result of a Constant node, because functions have no initializers. The new name
    begins with ``name_hint``, by default the name of the first result of ``before``.
    """
    prefix = f"{name_hint or before.outputs[0].name or 'value'}/constant"
    name = names.fresh(prefix)
    dtype = array.dtype if isinstance(array, np.ndarray) else np.int64
    tensor = ir.Tensor(np.array(array, dtype, order="C"), name=name)
    if in_function:
        node = constant_node(tensor, names.fresh(prefix, for_node=True))
        before.prepend(node)
        return node.outputs[0]
    assert before.graph is not None
    return add_initializer(before.graph, tensor)


def constant_node(tensor: ir.TensorProtocol, name: str | None) -> ir.Node:
    """Return a Constant node that is not in a graph yet.

    The output of the node has the name, type and shape of the tensor. ``name`` is the name of the
    node.
    """
    value = ir.AttrTensor("value", tensor)
    # onnx-ir generates a name if the argument is None
    node = ir.Node("", "Constant", [], [value], num_outputs=1, name=name or "")
    _describe(node.outputs[0], tensor)
    return node


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a tensor to a graph as an initializer with its name, type and shape. Return the value."""
    value = ir.Value()
    _describe(value, tensor)
    graph.initializers.add(value)
    return value


def make_input(initializer: ir.Value) -> None:
    """Convert an initializer into an input of its graph without a default value."""
    graph = initializer.graph
    assert graph is not None and initializer.name is not None
    del graph.initializers[initializer.name]
    set_tensor(initializer, None)
    if not initializer.is_graph_input():
        graph.inputs.append(initializer)


def set_tensor(value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
    """Replace the tensor of a constant; None removes the default value of an input."""
    value.const_value = tensor


def _describe(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    value.name = tensor.name
    set_tensor(value, tensor)
    value.type = ir.TensorType(tensor.dtype)
    value.shape = tensor.shape  # type: ignore[assignment]  # an ir.Shape
