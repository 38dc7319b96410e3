"""Facts through branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, common, of_type
from onnxfold.graphs import subgraphs_of

if TYPE_CHECKING:
    from onnxfold.analysis.symbolic.propagation import SymbolicAnalysis

# How often a loop's body is visited to find out what stays the same from turn to turn.
_ATTEMPTS = 3
# Loops in loops in loops are visited that often each time: further in, nothing is tried.
_DEEPEST_TRIAL = 3


def results(
    analysis: SymbolicAnalysis,
    node: ir.Node,
    inputs: Sequence[Fact | None],
) -> Sequence[Fact]:
    """Return the facts of the outputs of a node with subgraphs; visits the subgraphs.

    What runs more than once is looked at anew: a size may be another one in every turn.
    """
    if node.domain == "" and node.op_type == "If":
        return _branches(analysis, node)
    with analysis.again():
        if node.domain == "" and node.op_type == "Loop":
            return _loop(analysis, node, inputs)
        for graph in subgraphs_of(node):
            _anything(analysis, graph)
    return []


def _branches(analysis: SymbolicAnalysis, node: ir.Node) -> Sequence[Fact]:
    outputs = []
    for graph in subgraphs_of(node):
        analysis.run_graph(graph)
        outputs.append([analysis.of(v) for v in graph.outputs])
    condition = None if node.inputs[0] is None else analysis.of(node.inputs[0]).known
    if condition is not None and condition.size == 1:
        taken = "then_branch" if condition.item() else "else_branch"
        return [analysis.of(v) for v in node.attributes[taken].as_graph().outputs]
    return [common(analysis.algebra, facts[0], facts[-1]) for facts in zip(*outputs, strict=False)]


def _loop(
    analysis: SymbolicAnalysis, node: ir.Node, inputs: Sequence[Fact | None]
) -> Sequence[Fact]:
    """Return the turns of a Loop."""
    (body,) = subgraphs_of(node)
    algebra = analysis.algebra
    given = [UNKNOWN if f is None else f for f in inputs[2:]]
    made = body.outputs[1 + len(given) :]
    if len(body.inputs) != 2 + len(given) or len(body.outputs) < 1 + len(given):
        return _anything(analysis, body)
    mark = len(algebra.atoms)  # younger symbols are those of a turn
    carried = _repeat(analysis, body, given)
    results = [analysis.of(v) for v in made]
    if not _has_a_turn(inputs):
        results = [_without_a_turn(algebra, f, v) for f, v in zip(results, made, strict=True)]
    turns = algebra.unknown(low=0)
    return [*carried, *(_stacked(algebra, f, mark, turns) for f in results)]


def _has_a_turn(inputs: Sequence[Fact | None]) -> bool:
    """Return whether a Loop has at least one turn in every run."""
    most, condition = (None if f is None else f.known for f in inputs[:2])
    return (inputs[0] is None or (most is not None and bool((most > 0).all()))) and (
        inputs[1] is None or (condition is not None and bool(condition.all()))
    )


def _without_a_turn(algebra: Algebra, fact: Fact, output: ir.Value) -> Fact:
    """Return what is known of the result of a loop that may run no iteration.

    onnxruntime then takes the shape in the file, with 0 for each size that is no number.
    """
    shape = output.shape
    if fact.shape is None or shape is None or len(shape) != len(fact.shape):
        return Fact(fact.dtype, None, None, fact.other)
    sizes = [d if isinstance(d, int) else algebra.unknown(low=0) for d in shape]
    return of_type(fact.dtype, sizes, algebra)


def _anything(analysis: SymbolicAnalysis, body: ir.Graph) -> Sequence[Fact]:
    """Return a body of which it is not known what it gets."""
    for value in body.inputs:
        analysis.set(value, UNKNOWN)
    analysis.run_graph(body)
    return []


def _repeat(analysis: SymbolicAnalysis, body: ir.Graph, given: Sequence[Fact]) -> Sequence[Fact]:
    """Find what a body keeps of the values that go from turn to turn.

    At first all of it is taken to stay as it is before the first turn. What the body changes is
    taken to vary then, until the rest holds.

    Args:
        analysis: The analysis of the model.
        body: The body. It is given the number of the turn, a condition, and the carried values,
            and makes a condition, the values to be carried on, and others.
        given: What is known of the carried values before the first turn.

    Returns:
        What is known of the carried values after the last turn.
    """
    algebra, end = analysis.algebra, body.outputs[1 : 1 + len(given)]
    first = [of_type(dtype, (), algebra) for dtype in (ir.DataType.INT64, ir.DataType.BOOL)]

    def after_turn(facts: Sequence[Fact]) -> list[Fact]:
        for value, fact in zip(body.inputs, (*first, *facts), strict=True):
            analysis.set(value, fact)
        analysis.run_graph(body)
        return [common(algebra, a, analysis.of(v)) for a, v in zip(given, end, strict=True)]

    facts = given
    for _ in range(_ATTEMPTS if analysis.nesting <= _DEEPEST_TRIAL else 0):
        before, facts = facts, after_turn(facts)
        if all(_kept(g, a) == _kept(g, b) for g, a, b in zip(given, before, facts, strict=True)):
            return facts
    facts = [Fact(fact.dtype) for fact in given]  # ONNX lets only shapes vary
    after_turn(facts)
    return facts


def _kept(given: Fact, fact: Fact) -> tuple[object, ...]:
    """Tell what a fact has in common with another one."""
    sizes = zip(given.shape or (), fact.shape or (), strict=False)
    return fact is given, fact.dtype, fact.rank, [a == b for a, b in sizes]


def _stacked(algebra: Algebra, fact: Fact, mark: int, turns: Number) -> Fact:
    """Return one result for each turn: sizes that may change from turn to turn are not known
    outside.
    """
    if fact.shape is None or fact.other is not None:
        return Fact(fact.dtype)
    sizes = [d if algebra.is_older(d, mark) else algebra.unknown(low=0) for d in fact.shape]
    return of_type(fact.dtype, [turns, *sizes], algebra)
