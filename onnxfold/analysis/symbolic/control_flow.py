"""Propagate facts through branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Expr, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, common, of_type
from onnxfold.graphs import subgraphs_of

# Maximum number of visits of a loop's body to find invariants of the iterations.
_ATTEMPTS = 3
# Depth of nested loops up to which invariants are searched, as the visits multiply.
_DEEPEST_TRIAL = 3

Visit = Callable[[ir.Graph, Sequence[Fact] | None], Sequence[Fact]]
"""Returns the facts of a graph's outputs. A body that may run more than once is visited again with
facts of its inputs, as sizes may differ between iterations."""


def results(
    algebra: Algebra, node: ir.Node, inputs: Sequence[Fact | None], depth: int, visit: Visit
) -> Sequence[Fact]:
    """Return the facts of the outputs of a node with subgraphs, which are visited.

    ``depth`` is the number of bodies around the node that may run more than once.
    """
    graphs = subgraphs_of(node)
    if node.domain == "" and node.op_type == "If":
        outputs = [visit(graph, None) for graph in graphs]
        condition = None if inputs[0] is None else inputs[0].known
        if condition is not None and condition.size == 1:
            taken = node.attributes["then_branch" if condition.item() else "else_branch"]
            return outputs[graphs.index(taken.as_graph())]
        return [common(algebra, facts[0], facts[-1]) for facts in zip(*outputs, strict=False)]
    if node.domain == "" and node.op_type == "Loop":
        given = [UNKNOWN if f is None else f for f in inputs[2:]]
        (body,) = graphs
        if len(body.inputs) == 2 + len(given) and len(body.outputs) > len(given):
            mark = len(algebra.atoms)  # later atoms belong to an iteration
            made = _repeat(algebra, body, given, depth, visit)
            others, ends = made[len(given) :], body.outputs[1 + len(given) :]
            has_a_turn = _has_a_turn(inputs)
            shapes = [f.shape if has_a_turn else v.shape for f, v in zip(others, ends, strict=True)]
            turns = algebra.unknown(low=0)
            stacked = [
                _stacked(algebra, f, s, mark, turns) for f, s in zip(others, shapes, strict=True)
            ]
            return [*made[: len(given)], *stacked]
    for graph in graphs:
        visit(graph, [UNKNOWN] * len(graph.inputs))
    return []


def _has_a_turn(inputs: Sequence[Fact | None]) -> bool:
    """Return whether a Loop has at least one iteration in every run."""
    most, condition = (None if f is None else f.known for f in inputs[:2])
    return (inputs[0] is None or (most is not None and bool((most > 0).all()))) and (
        inputs[1] is None or (condition is not None and bool(condition.all()))
    )


def _repeat(
    algebra: Algebra, body: ir.Graph, given: Sequence[Fact], depth: int, visit: Visit
) -> Sequence[Fact]:
    """Find the invariants of the values carried by a loop.

    At first, all facts are assumed to hold as before the first iteration. Those that the body
    changes are then dropped, until the rest holds.

    The inputs of the body are the iteration number, a condition, and the carried values; its
    outputs are a condition, the next carried values, and others. Returns the facts of the carried
    values after the last iteration, and of the others in each iteration.
    """
    # onnxruntime gives an iteration number that is declared with axes one; the condition is that
    # of the first iteration, as declared, or an output of the body
    shape = (1,) if body.inputs[0].shape else ()
    turn = (of_type(ir.DataType.INT64, shape, algebra), Fact(ir.DataType.BOOL))
    facts = given
    for _ in range(_ATTEMPTS if depth < _DEEPEST_TRIAL else 0):
        made = visit(body, (*turn, *facts))[1:]
        before = facts
        facts = [common(algebra, a, b) for a, b in zip(given, made, strict=False)]
        if all(_kept(g, a) == _kept(g, b) for g, a, b in zip(given, before, facts, strict=True)):
            return [*facts, *made[len(given) :]]
    facts = [Fact(fact.dtype) for fact in given]  # in ONNX only shapes may vary
    return [*facts, *visit(body, (*turn, *facts))[1 + len(given) :]]


def _kept(given: Fact, fact: Fact) -> tuple[object, ...]:
    """Return the parts of a fact that are equal to those of another one."""
    sizes = zip(given.shape or (), fact.shape or (), strict=False)
    return fact is given, fact.dtype, fact.rank, [a == b for a, b in sizes]


def _stacked(
    algebra: Algebra, fact: Fact, shape: Iterable[object] | None, mark: int, turns: Number
) -> Fact:
    """Return the results of all iterations, stacked: sizes that may vary are unknown outside.
    Without an iteration, onnxruntime uses the shape in the file.
    """
    shape = None if shape is None else list(shape)
    if shape is None or len(shape) != fact.rank or fact.other is not None:
        return Fact(fact.dtype)
    sizes = [
        size
        if isinstance(size, (int, Expr)) and all(k < mark for k in algebra.atoms_in(size))
        else algebra.unknown(low=0)
        for size in shape
    ]
    return of_type(fact.dtype, [turns, *sizes], algebra)
