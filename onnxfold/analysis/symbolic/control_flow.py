"""Facts through branches, loops and calls of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.analysis.content import content_of_attributes
from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, common, of_type
from onnxfold.graphs import has_references, subgraphs_of

if TYPE_CHECKING:
    from onnxfold.analysis.symbolic.propagation import SymbolicAnalysis

# How often a loop's body is visited to find out what stays the same from turn to turn.
_ATTEMPTS = 3
# Loops in loops in loops are visited that often each time: further in, nothing is tried.
_DEEPEST_TRIAL = 3
# Before, a Scan had an axis of sequences to run over, and their lengths.
_SCAN_WITHOUT_BATCHES = 9
# Functions that call functions that call functions ...
_DEEPEST_CALL = 16


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
        if node.domain == "" and node.op_type == "Loop":
            return _loop(analysis, node, inputs)
        scope = analysis.scopes.find(node.graph)
        version = 1 if scope is None else scope.opsets.get("", 1)
        if node.domain == "" and node.op_type == "Scan" and version >= _SCAN_WITHOUT_BATCHES:
            return _scan(analysis, node, inputs)
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
    """A number of turns that is not known before; the body gets their number and a condition."""
    body = node.attributes["body"].as_graph()
    algebra = analysis.algebra
    carried = [_Carried(UNKNOWN if f is None else f) for f in inputs[2:]]
    if len(body.inputs) != len(carried) + 2 or len(body.outputs) < len(carried) + 1:
        return _anything(analysis, body)

    def others() -> list[Fact]:
        return [of_type(dtype, (), algebra) for dtype in (ir.DataType.INT64, ir.DataType.BOOL)]

    start, end = body.inputs[2:], body.outputs[1 : len(carried) + 1]
    mark = _repeat(analysis, node, carried, (start, end), (body.inputs[:2], others))
    scanned = [analysis.of(v) for v in body.outputs[len(carried) + 1 :]]
    if not _has_a_turn(inputs):
        declared = body.outputs[len(carried) + 1 :]
        scanned = [_without_a_turn(algebra, f, v) for f, v in zip(scanned, declared, strict=True)]
    turns = algebra.unknown(low=0)
    return [
        *(each.fact(algebra) for each in carried),
        *(_stacked(algebra, f, mark, turns) for f in scanned),
    ]


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


def _scan(
    analysis: SymbolicAnalysis, node: ir.Node, inputs: Sequence[Fact | None]
) -> Sequence[Fact]:
    """A turn for each slice of the inputs."""
    body = node.attributes["body"].as_graph()
    algebra = analysis.algebra
    if has_references(node):
        return _anything(analysis, body)
    count = int(node.attributes["num_scan_inputs"].value)
    states = len(inputs) - count
    carried = [_Carried(UNKNOWN if f is None else f) for f in inputs[:states]]
    if len(body.inputs) != len(inputs) or len(body.outputs) < states or states < 0:
        return _anything(analysis, body)
    scanned = [UNKNOWN if f is None else f for f in inputs[states:]]
    axes = _axes(node, "scan_input_axes", count)

    def slices() -> list[Fact]:
        return [_slice(algebra, f, axis) for f, axis in zip(scanned, axes, strict=True)]

    start, end = body.inputs[:states], body.outputs[:states]
    mark = _repeat(analysis, node, carried, (start, end), (body.inputs[states:], slices))
    turns: Number | None = None
    for fact, axis in zip(scanned, axes, strict=True):
        if fact.shape is not None and -len(fact.shape) <= axis < len(fact.shape):
            size = fact.shape[axis]  # they are all equal: a number stands for all
            turns = size if turns is None or isinstance(size, int) else turns
    results = [analysis.of(v) for v in body.outputs[states:]]
    places = _axes(node, "scan_output_axes", len(results))
    turns = algebra.unknown(low=0) if turns is None else turns
    return [
        *(each.fact(algebra) for each in carried),
        *(_stacked(algebra, f, mark, turns, k) for f, k in zip(results, places, strict=True)),
    ]


def _axes(node: ir.Node, name: str, count: int) -> Sequence[int]:
    given = node.attributes.get(name)
    return [0] * count if given is None or len(given.value) != count else list(given.value)


def _slice(algebra: Algebra, fact: Fact, axis: int) -> Fact:
    """What is known of the part of a tensor that a turn gets."""
    if fact.shape is None or not -len(fact.shape) <= axis < len(fact.shape):
        return Fact(fact.dtype)
    sizes = list(fact.shape)
    del sizes[axis]
    return of_type(fact.dtype, sizes, algebra)


def _anything(analysis: SymbolicAnalysis, body: ir.Graph) -> Sequence[Fact]:
    """A body of which it is not known what it gets."""
    for value in body.inputs:
        analysis.set(value, UNKNOWN)
    analysis.run_graph(body)
    return []


_Values = Sequence[ir.Value]


def _repeat(
    analysis: SymbolicAnalysis,
    node: ir.Node,
    carried: Sequence[_Carried],
    ends: tuple[_Values, _Values],
    others: tuple[_Values, Callable[[], Sequence[Fact]]],
) -> int:
    """What a body keeps from turn to turn is found by trying.

    First everything that is carried is taken to stay as it is before the first turn; what the body
    changes is then taken to vary, until the body keeps all the rest.

    Args:
        analysis: The analysis of the model.
        node: The node whose body it is.
        carried: What goes from turn to turn; weakened until it holds.
        ends: The values of the body that begin and end a turn with it.
        others: The other inputs of the body, and their facts for some turn.

    Returns:
        How many atoms there were before the last attempt: younger symbols are those of a turn.
    """
    start, end = ends
    body = node.attributes["body"].as_graph()
    attempts = _ATTEMPTS if _depth(analysis, node) < _DEEPEST_TRIAL else 0
    mark = 0
    for attempt in range(attempts + 1):
        if attempt == attempts:
            for each in carried:
                each.give_up()
        mark = len(analysis.algebra.atoms)
        for value, fact in zip(others[0], others[1](), strict=True):
            analysis.set(value, fact)
        for value, each in zip(start, carried, strict=True):
            analysis.set(value, each.fact(analysis.algebra))
        analysis.run_graph(body)
        after = [analysis.of(v) for v in end]
        weakened = [each.weaken(f) for each, f in zip(carried, after, strict=True)]
        if not any(weakened):
            break
    return mark


def _depth(analysis: SymbolicAnalysis, node: ir.Node) -> int:
    """How many loops the node is in."""
    depth = 0
    scope = analysis.scopes.find(node.graph)
    while scope is not None and scope.parent is not None:
        depth += scope.parent.op_type in ("Loop", "Scan")
        scope = analysis.scopes.find(scope.parent.graph)
    return depth


class _Carried:
    """What stays the same of a value that a loop carries."""

    def __init__(self, start: Fact) -> None:
        self._start = start
        self._dtype = start.dtype
        self._other = start.other
        self._sizes: list[Number | None] | None = None if start.shape is None else [*start.shape]
        self._has_items = start.items is not None

    def fact(self, algebra: Algebra) -> Fact:
        """What is known of it in some turn: a new symbol for each size that varies."""
        if self._sizes is None:
            return Fact(self._dtype, None, None, self._other)
        if self._has_items:
            return self._start
        sizes = [algebra.unknown(low=0) if d is None else d for d in self._sizes]
        return of_type(self._dtype, sizes, algebra)

    def weaken(self, after: Fact) -> bool:
        """Give up what a turn changes; True if there was something."""
        before = (self._dtype, self._other, self._has_items)
        sizes = None if self._sizes is None else list(self._sizes)
        self._dtype = self._dtype if after.dtype == self._dtype else None
        self._other = self._other if after.other == self._other else None
        self._has_items = self._has_items and after is self._start
        if self._sizes is not None:
            if after.shape is None or len(after.shape) != len(self._sizes):
                self._sizes = None
            else:
                self._sizes = [
                    a if a == b else None for a, b in zip(self._sizes, after.shape, strict=True)
                ]
        return before != (self._dtype, self._other, self._has_items) or sizes != self._sizes

    def give_up(self) -> None:
        """Its shape is taken to vary in every way."""
        self._has_items = False
        self._sizes = None


def _stacked(algebra: Algebra, fact: Fact, mark: int, turns: Number, axis: int = 0) -> Fact:
    """One result for each turn: sizes that may change from turn to turn are not known outside."""
    if fact.shape is None or fact.other is not None:
        return Fact(fact.dtype)
    rank = len(fact.shape) + 1
    if not -rank <= axis < rank:
        return Fact(fact.dtype)
    sizes = [d if algebra.is_older(d, mark) else algebra.unknown(low=0) for d in fact.shape]
    sizes.insert(axis % rank, turns)
    return of_type(fact.dtype, sizes, algebra)


class Calls:
    """What functions return: their bodies visited with what is known of a call's operands."""

    def __init__(self) -> None:
        self._found: dict[object, Sequence[Fact]] = {}
        self._arguments: list[Mapping[str, ir.Attr]] = []

    def argument(self, attribute: ir.Attr) -> ir.Attr | None:
        """What the call that is being visited gives for an attribute of its function."""
        if not self._arguments or attribute.ref_attr_name is None:
            return None
        return self._arguments[-1].get(attribute.ref_attr_name)

    def results(
        self,
        analysis: SymbolicAnalysis,
        node: ir.Node,
        function: ir.Function,
        inputs: Sequence[Fact | None],
    ) -> Sequence[Fact]:
        """The facts of the outputs of a call."""
        arguments = self._arguments_of(node, function)
        if arguments is None or len(self._arguments) >= _DEEPEST_CALL:
            return []
        content = content_of_attributes(arguments.values())
        key = (
            function.identifier(),
            tuple(arguments),
            tuple(map(id, arguments.values())) if content is None else content,
            *inputs,
        )
        found = self._found.get(key)
        if found is not None:
            return found
        algebra = analysis.algebra
        mark = len(algebra.atoms)
        found = self._visit(analysis, function, inputs, arguments)
        # the same operands, as far as is known, may still make other new sizes
        if all(_is_older(algebra, fact, mark) for fact in found):
            self._found[key] = found
        return found

    def _arguments_of(self, node: ir.Node, function: ir.Function) -> Mapping[str, ir.Attr] | None:
        arguments = {a.name: a for a in function.attributes.values() if a.value is not None}
        for name, attribute in node.attributes.items():
            given = self.argument(attribute) if attribute.is_ref() else attribute
            if given is None or given.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                return None
            arguments[name] = given
        return arguments

    def _visit(
        self,
        analysis: SymbolicAnalysis,
        function: ir.Function,
        inputs: Sequence[Fact | None],
        arguments: Mapping[str, ir.Attr],
    ) -> Sequence[Fact]:
        self._arguments.append(arguments)
        with analysis.aside():
            for k, value in enumerate(function.inputs):
                fact = inputs[k] if k < len(inputs) else None
                analysis.set(value, UNKNOWN if fact is None else fact)
            analysis.run_graph(function.graph)
            found = [analysis.of(v) for v in function.outputs]
        self._arguments.pop()
        return found


def _is_older(algebra: Algebra, fact: Fact, mark: int) -> bool:
    if not all(algebra.is_older(d, mark) for d in fact.shape or ()):
        return False
    return not fact.is_symbolic or all(
        algebra.is_older(n, mark) for n in (() if fact.items is None else fact.items.flat)
    )
