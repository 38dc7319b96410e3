"""What other options would remove beyond what was done: tried on a copy of the graph."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.graphs import is_constant_node
from onnxfold.options import Options
from onnxfold.passes import create

# Trying costs about as much as optimizing; for larger graphs nobody wants to wait for an advice.
_MOST_NODES = 3_000


def outlook(model: ir.Model, options: Options) -> dict[str, int]:
    """Return how many nodes other options would remove beyond those that are gone.

    The rules are run on a copy that shares all tensors; nothing is computed.

    Args:
        model: The optimized model; left alone.
        options: What it was optimized with.

    Returns:
        Nodes by command line option, only those that would remove any.
    """
    if options.level == 0 or options.passes is not None:
        return {}
    if sum(1 for _ in model.graph.all_nodes()) > _MOST_NODES:
        return {}
    others = {
        "-O2": replace(options, level=2),
        "--target onnxruntime": replace(options, target="onnxruntime"),
    }
    found = {}
    for name, other in others.items():
        copy = model.clone()
        if other != options and create("simplify", other)(copy).modified:
            create("dead-code", other)(copy)
            found[name] = _count(model) - _count(copy)
    return {name: nodes for name, nodes in found.items() if nodes > 0}


def _count(model: ir.Model) -> int:
    """Return the nodes that compute something at run time: what rules leave over constants will be
    folded.
    """
    facts = facts_of(model)
    return sum(
        not (is_constant_node(node) or all(facts.known.is_constant(v) for v in node.outputs))
        for graph in facts.scopes.graphs()
        for node in graph
    )
