"""Facts through branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Expr, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, common, of_type
from onnxfold.graphs import subgraphs_of

# How often a loop's body is visited to find out what stays the same from turn to turn.
_ATTEMPTS = 3
# Loops in loops in loops are visited that often each time: further in, nothing is tried.
_DEEPEST_TRIAL = 3

Visit = Callable[[ir.Graph, Sequence[Fact] | None], Sequence[Fact]]
"""Returns the facts of a graph's outputs. What runs more than once is given facts of its inputs and
looked at anew: a size may be another one in every turn."""


def results(
    algebra: Algebra, node: ir.Node, inputs: Sequence[Fact | None], depth: int, visit: Visit
) -> Sequence[Fact]:
    """Return the facts of the outputs of a node with subgraphs; visits the subgraphs.

    Args:
        algebra: Of the model's expressions.
        node: The node.
        inputs: What is known of its inputs; None for one that is omitted.
        depth: How many graphs that run more than once the node is in.
        visit: Visits a subgraph.
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
            mark = len(algebra.atoms)  # younger ones are those of a turn
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
    """Return whether a Loop has at least one turn in every run."""
    most, condition = (None if f is None else f.known for f in inputs[:2])
    return (inputs[0] is None or (most is not None and bool((most > 0).all()))) and (
        inputs[1] is None or (condition is not None and bool(condition.all()))
    )


def _repeat(
    algebra: Algebra, body: ir.Graph, given: Sequence[Fact], depth: int, visit: Visit
) -> Sequence[Fact]:
    """Find what a body keeps of the values that go from turn to turn.

    At first all of it is taken to stay as it is before the first turn. What the body changes is
    taken to vary then, until the rest holds.

    The body is given the number of the turn, a condition, and the carried values, and makes a
    condition, the values to be carried on, and others. Returned is what is known of the carried
    values after the last turn, and of the others in each turn.
    """
    # onnxruntime makes the number of as many axes as are declared; the condition is that of the
    # first turn, as declared, or what the body makes
    declared = body.inputs[0].shape
    shape = (1,) * (0 if declared is None else len(declared))
    turn = (of_type(ir.DataType.INT64, shape, algebra), Fact(ir.DataType.BOOL))
    facts = given
    for _ in range(_ATTEMPTS if depth < _DEEPEST_TRIAL else 0):
        made = visit(body, (*turn, *facts))[1:]
        before = facts
        facts = [common(algebra, a, b) for a, b in zip(given, made, strict=False)]
        if all(_kept(g, a) == _kept(g, b) for g, a, b in zip(given, before, facts, strict=True)):
            return [*facts, *made[len(given) :]]
    facts = [Fact(fact.dtype) for fact in given]  # ONNX lets only shapes vary
    return [*facts, *visit(body, (*turn, *facts))[1 + len(given) :]]


def _kept(given: Fact, fact: Fact) -> tuple[object, ...]:
    """Tell what a fact has in common with another one."""
    sizes = zip(given.shape or (), fact.shape or (), strict=False)
    return fact is given, fact.dtype, fact.rank, [a == b for a, b in sizes]


def _stacked(
    algebra: Algebra, fact: Fact, shape: Iterable[object] | None, mark: int, turns: Number
) -> Fact:
    """Return one result for each turn: sizes that may change from turn to turn are not known
    outside. Without a turn, onnxruntime takes the shape in the file.
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
