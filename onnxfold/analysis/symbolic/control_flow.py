"""Facts through branches and loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# Before, a Scan had an axis of sequences to run over, and their lengths.
_SCAN_WITHOUT_BATCHES = 9


def results(
    analysis: SymbolicAnalysis,
    node: ir.Node,
    inputs: Sequence[Fact | None],
) -> Sequence[Fact]:
    """The facts of the outputs of a node with subgraphs; visits the subgraphs.

    What runs more than once is looked at anew: a size may be another one in every turn.
    """
    if node.domain == "" and node.op_type == "If":
        return _branches(analysis, node)
    with analysis.again():
        if node.domain == "" and node.op_type in ("Loop", "Scan"):
            scope = analysis.scopes.find(node.graph)
            version = 1 if scope is None else scope.opsets.get("", 1)
            axes = (node.attributes.get(f"scan_{which}_axes") for which in ("input", "output"))
            if not any(a is not None and (a.is_ref() or any(a.value)) for a in axes) and (
                node.op_type == "Loop" or version >= _SCAN_WITHOUT_BATCHES
            ):
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
    """The turns of a Loop, or of a Scan, each of which gets the next slices of the last inputs."""
    (body,) = subgraphs_of(node)
    algebra, is_scan = analysis.algebra, node.op_type == "Scan"
    before, first = (0, 0) if is_scan else (2, 1)  # a count and a condition
    known = [UNKNOWN if f is None else f for f in inputs]
    count = len(known) - before - node.attributes.get_int("num_scan_inputs", 0)
    given, scanned = known[before : before + count], known[before + count :]
    made = body.outputs[first + count :]
    if count < 0 or len(body.inputs) != len(known) or len(body.outputs) < first + count:
        return _anything(analysis, body)
    mark = len(algebra.atoms)  # younger symbols are those of a turn
    dtypes = (ir.DataType.INT64, ir.DataType.BOOL)[:before]
    others = {v: of_type(d, (), algebra) for v, d in zip(body.inputs, dtypes, strict=False)}
    for value, fact in zip(body.inputs[count:] if is_scan else (), scanned, strict=False):
        others[value] = of_type(fact.dtype, fact.shape[1:] if fact.shape else None, algebra)
    carried = _repeat(analysis, body, given, first, others)
    results = [analysis.of(v) for v in made]
    if not is_scan and not _has_a_turn(inputs):
        results = [_without_a_turn(algebra, f, v) for f, v in zip(results, made, strict=True)]
    # all lengths of what is scanned are equal: a number stands for all
    lengths = [fact.shape[0] for fact in scanned if fact.shape] or [algebra.unknown(low=0)]
    turns = next((length for length in lengths if isinstance(length, int)), lengths[0])
    return [*carried, *(_stacked(algebra, f, mark, turns) for f in results)]


def _has_a_turn(inputs: Sequence[Fact | None]) -> bool:
    """Whether a Loop has at least one turn in every run."""
    most, condition = (None if f is None else f.known for f in inputs[:2])
    return (inputs[0] is None or (most is not None and bool((most > 0).all()))) and (
        inputs[1] is None or (condition is not None and bool(condition.all()))
    )


def _without_a_turn(algebra: Algebra, fact: Fact, output: ir.Value) -> Fact:
    """A result of a turn, as far as onnxruntime knows it if there is none.

    It goes by what the file says: where that is no number, it takes 0, and no rank without one.
    """
    shape = output.shape
    if fact.shape is None or shape is None or len(shape) != len(fact.shape):
        return Fact(fact.dtype, None, None, fact.other)
    sizes = [d if isinstance(d, int) else algebra.unknown(low=0) for d in shape]
    return of_type(fact.dtype, sizes, algebra)


def _anything(analysis: SymbolicAnalysis, body: ir.Graph) -> Sequence[Fact]:
    """A body of which it is not known what it gets."""
    for value in body.inputs:
        analysis.set(value, UNKNOWN)
    analysis.run_graph(body)
    return []


def _repeat(
    analysis: SymbolicAnalysis,
    body: ir.Graph,
    given: Sequence[Fact],
    first: int,
    others: Mapping[ir.Value, Fact],
) -> Sequence[Fact]:
    """Find what a body keeps of the values that go from turn to turn.

    At first all of it is taken to stay as it is before the first turn. What the body changes is
    taken to vary then, until the rest holds.

    Args:
        analysis: The analysis of the model.
        body: The body. Its first outputs are carried to its first inputs, beside others.
        given: What is known of the carried values before the first turn.
        first: How many outputs are before the carried ones.
        others: The inputs of the body that are not carried, and what is known of them in a turn.

    Returns:
        What is known of the carried values after the last turn.
    """
    start = [value for value in body.inputs if value not in others]
    end = body.outputs[first : first + len(given)]

    def after_turn(facts: Sequence[Fact]) -> list[Fact]:
        for value, fact in (*others.items(), *zip(start, facts, strict=True)):
            analysis.set(value, fact)
        analysis.run_graph(body)
        return [
            common(analysis.algebra, a, analysis.of(v)) for a, v in zip(given, end, strict=True)
        ]

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
    """One result for each turn: sizes that may change from turn to turn are not known outside."""
    if fact.shape is None or fact.other is not None:
        return Fact(fact.dtype)
    sizes = [d if algebra.is_older(d, mark) else algebra.unknown(low=0) for d in fact.shape]
    return of_type(fact.dtype, [turns, *sizes], algebra)
