"""Replacing an If whose condition is known by the branch that is taken."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.editing import Names, remove_nodes, take_over


def inline_branch(node: ir.Node, branch: ir.Graph, names: Names) -> list[ir.Node]:
    """Move a branch's nodes and initializers behind the If ``node``, and take the node out.

    The results keep the If's output names; other values of the branch keep theirs unless the model
    uses them elsewhere (branches may name their values alike).

    Args:
        node: The If node, in any graph of the model.
        branch: The then or else graph of the node.
        names: Those of the model.

    Returns:
        Nodes that were added, for results that no node of the branch makes.
    """
    graph = node.graph
    assert graph is not None
    outputs = list(branch.outputs)
    branch.outputs.clear()  # an output belongs to its graph as long as it is one
    for value in list(branch.initializers.values()):
        assert value.name is not None
        del branch.initializers[value.name]
        names.make_unique(value)
        graph.initializers.add(value)
    nodes = list(branch)
    branch.remove(nodes)
    made = dict.fromkeys(value for inner in nodes for value in inner.outputs)
    for value in made:
        names.make_unique(value)
    node.append(nodes)
    last = nodes[-1] if nodes else node
    taken: set[ir.Value] = set()
    added = []
    for result, output in zip(node.outputs, outputs, strict=True):
        if not result.name:  # left out: nobody reads it
            continue
        if output not in made or output in taken:
            # an outer value, an initializer or a value given twice: it has a name of its own
            identity = ir.node("Identity", [output], num_outputs=1, name=node.name)
            last.append(identity)
            added.append(identity)
            last = identity
            output = identity.outputs[0]
        taken.add(output)
        take_over(result, output, declared=result.is_graph_output())
    remove_nodes([node])
    return added
