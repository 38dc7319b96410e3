"""Replacing an If whose condition is known by the branch that is taken."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.analysis.scopes import Scope
from onnxfold.editing import Names, constant_node, remove_nodes, take_over


def inline_branch(node: ir.Node, branch: ir.Graph, names: Names, scope: Scope) -> None:
    """Move a branch's nodes and initializers behind the If ``node``, and take the node out.

    The results keep the If's output names; other values of the branch keep theirs unless the model
    uses them elsewhere (branches may name their values alike).

    Args:
        node: The If node, in any graph of the model.
        branch: The then or else graph of the node.
        names: Those of the model.
        scope: That of the If node. A function has no initializers: they become nodes there.
    """
    constants = []
    if scope.in_function and scope.parent is None:
        for name, value in list(branch.initializers.items()):
            assert value.const_value is not None
            del branch.initializers[name]
            constants.append(constant_node(value.const_value, node.name))
            take_over(value, constants[-1].outputs[0])
    outputs = list(branch.outputs)
    branch.outputs.clear()  # an output belongs to its graph as long as it is one
    for value in list(branch.initializers.values()):
        assert value.name is not None
        del branch.initializers[value.name]
        names.make_unique(value)
        scope.graph.initializers.add(value)
    branch.remove(nodes := list(branch))
    nodes = [*constants, *nodes]
    made = dict.fromkeys(value for inner in nodes for value in inner.outputs)
    for value in made:
        names.make_unique(value)
    node.append(nodes)
    last = nodes[-1] if nodes else node
    taken: set[ir.Value] = set()
    for result, output in zip(node.outputs, outputs, strict=True):
        if not result.name:  # left out: nobody reads it
            continue
        if output not in made or output in taken:
            # an outer value, an initializer or a value given twice: it has a name of its own
            identity = ir.node("Identity", [output], num_outputs=1, name=node.name)
            last.append(identity)
            last, output = identity, identity.outputs[0]
        taken.add(output)
        take_over(result, output, declared=result.is_graph_output())
    remove_nodes([node])
