"""Replacing an If whose condition is known by the branch that is taken."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.analysis.constants import all_graphs


def inline_branch(model: ir.Model, node: ir.Node, branch: ir.Graph) -> None:
    """Move a branch's nodes and initializers behind the If ``node``, and take the node out.

    The results keep the If's output names; other values of the branch keep theirs unless the model
    uses them elsewhere (branches may name their values alike).

    Args:
        model: The model that holds all of it.
        node: The If node, in any graph of the model.
        branch: The then or else graph of the node.
    """
    graph = node.graph
    assert graph is not None
    outputs = list(branch.outputs)
    names = _names_outside(model, branch)
    branch.outputs.clear()  # an output belongs to its graph as long as it is one
    initializers = list(branch.initializers.values())
    for value in initializers:
        assert value.name is not None
        del branch.initializers[value.name]
        _rename(value, names)
        graph.initializers.add(value)
    nodes = list(branch)
    branch.remove(nodes)
    for inner in nodes:
        for value in inner.outputs:
            if value.name:
                _rename(value, names)
    node.append(nodes)
    last = nodes[-1] if nodes else node
    taken: set[ir.Value] = set()
    for result, output in zip(node.outputs, outputs, strict=True):
        name = result.name
        result.name = None if name else name
        if output.producer() not in nodes or output in taken or output.is_graph_output():
            # an outer value, an initializer or a value given twice: it has a name of its own
            identity = ir.node("Identity", [output], num_outputs=1)
            last.append(identity)
            last = identity
            output = identity.outputs[0]
        taken.add(output)
        output.name = name
        if result.type is not None:
            output.type = result.type
        if result.shape is not None and output.shape is None:
            output.shape = result.shape
        result.replace_all_uses_with(output, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _names_outside(model: ir.Model, branch: ir.Graph) -> set[str]:
    """Names of all values in the model that are not the branch's own."""
    names: set[str] = set()
    for graph in all_graphs(model):
        if graph is branch:
            continue
        names.update(v.name for v in graph.inputs if v.name)
        names.update(graph.initializers)
        names.update(v.name for n in graph for v in n.outputs if v.name)
    return names


def _rename(value: ir.Value, names: set[str]) -> None:
    """Give the value a name that is not in ``names``: its own if possible."""
    name = value.name or "value"
    unique, count = name, 1
    while unique in names:
        unique, count = f"{name}_{count}", count + 1
    if unique != value.name:
        value.name = unique
    names.add(unique)
