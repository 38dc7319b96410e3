"""Infer shapes and small values of a model, each value once and on demand.

A body that may run more than once is visited again with facts of its inputs, as sizes may differ
between iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import chain, repeat

import onnx_ir as ir

from onnxfold.analysis.constness import ConstnessAnalysis
from onnxfold.analysis.content import content_of_attributes
from onnxfold.analysis.op_facts import results_of
from onnxfold.analysis.scopes import Scope, Scopes
from onnxfold.ir.graphs import (
    captured_values,
    has_references,
    is_constant_node,
    name_of,
    subgraphs_of,
)
from onnxfold.ir.onnx_ir_private import nodes_of, uses
from onnxfold.ir.storage import sizes_of
from onnxfold.ir.symbolic.expression import Algebra, Number
from onnxfold.ir.symbolic.fact import (
    SIZE_DTYPES,
    UNKNOWN,
    Fact,
    FactTable,
    Shape,
    common,
    is_small,
    of_array,
    of_type,
)
from onnxfold.ops import Trait, definition_of

# Maximum number of visits of a loop's body to find invariants of the iterations.
_ATTEMPTS = 3
# Depth of nested loops up to which invariants are searched, as the visits multiply.
_DEEPEST_TRIAL = 3


class FactPropagation:
    """The facts of every value of a model.

    The ``value_info`` of a file is ignored: some tools leave stale entries. Facts stay valid while
    the graph is rewritten, as the result of a node never changes. Results of the model's functions
    are unknown. The nodes are in topological order.
    """

    def __init__(self, scopes: Scopes, constness: ConstnessAnalysis) -> None:
        self.model = scopes.model
        self._functions = scopes.model.functions
        self.algebra = Algebra()
        self.scopes = scopes
        self.constness = constness
        self._facts: MutableMapping[ir.Value, Fact] = {}
        self._decided: dict[ir.Value, Fact] = {}
        """Conditions decided because the run would fail otherwise."""
        self._read: dict[ir.Node, Sequence[ir.Value | None]] = {}
        """The inputs of each node at its visit: onnx-ir makes a new tuple when inputs change."""
        self.journal: set[ir.Node] = set()
        """Nodes that were visited, or have other inputs, since a pass last emptied it."""
        self.table = FactTable()
        """The facts of values; values with equal facts share them."""
        self._found: dict[tuple[object, ...], tuple[Sequence[Fact], Sequence[Number], int]] = {}
        """Results, requirements and number of queries of bounds for equal ops and operands."""
        self.nesting = 0
        """Number of bodies around the visited graph, which are always visited again."""
        self._required: dict[ir.Node, list[Number]] = {}
        """Numbers that must be at least 0, or a node of the main graph fails."""
        self._asking: set[ir.Node] = set()
        """Nodes whose results depend on bounds of expressions."""

    def of(self, value: ir.Value) -> Fact:
        """Return the facts of a value."""
        facts = self._facts
        return facts[value] if value in facts else self._find(value)

    def snapshot(self) -> Mapping[ir.Value, Fact]:
        """Return a copy of the facts inferred so far."""
        return dict(self._facts)

    def set(self, value: ir.Value, fact: Fact) -> None:
        """Set the facts of a value."""
        self._facts[value] = self.table.shared(fact)

    def same(self, old: ir.Value, new: ir.Value) -> None:
        """Record that ``new`` replaces ``old``, whose facts hold if none are inferred."""
        known = self.of(old)
        found = self.of(new)
        if found.other is None and (found.dtype is None or found.shape is None):
            dtype = known.dtype if found.dtype is None else found.dtype
            shape = known.shape if found.shape is None else found.shape
            self.set(new, Fact(dtype, shape) if known.other is None else known)

    def may_replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Return whether the shape declared of a graph output is right, or reaches no new users."""
        output, read = (new, old) if new.is_graph_output() else (old, new)
        if output.graph is None or not output.is_graph_output() or new.producer() is None:
            return True  # what no node makes keeps its name and its declaration
        declared = output.shape
        sizes = self.of(new).shape
        outputs = output.graph.outputs
        if declared is None or all(use.node is old.producer() for use in uses(read)):
            return True
        if sizes is None or len(sizes) != len(declared):
            return False
        for dim, size in zip(declared, sizes, strict=True):
            found = dim if isinstance(dim, int) else self.algebra.size_of(dim.value)
            given = (zip(v.shape or (), self.of(v).shape or (), strict=False) for v in outputs)
            if found != size and (
                found is not None or any(d == str(dim) and n != size for p in given for d, n in p)
            ):
                return False
        return True

    def _find(self, value: ir.Value) -> Fact:
        facts = self._facts
        pending = [value]
        while pending:
            current = pending[-1]
            if current in facts:
                pending.pop()
                continue
            node = current.producer()
            if node is None and current.is_graph_input():  # the node of the body
                scope = self.scopes.find(current.graph)
                node = None if scope is None else scope.parent
            if node is None:
                facts[current] = self._source(current)
                pending.pop()
                continue
            missing = [v for v in self.needed(node) if v not in facts]
            if missing:
                pending.extend(missing)
                continue
            self._visit(node, self.scopes.find(node.graph))
            pending.pop()
            facts.setdefault(current, UNKNOWN)
        return facts[value]

    def needed(self, node: ir.Node) -> list[ir.Value]:
        """Return the values that a node and its subgraphs read."""
        needed = [v for v in node.inputs if v is not None]
        if node in self.scopes.parents:
            needed.extend(captured_values(node))
        return needed

    def run_graph(self, graph: ir.Graph) -> None:
        """Visit the nodes of a graph whose inputs have facts."""
        facts = self._facts
        scope = self.scopes.find(graph)
        for node in nodes_of(graph):
            outputs = node.outputs
            if self.nesting or not outputs or outputs[0] not in facts:
                self._visit(node, scope)

    def _run_body(self, body: ir.Graph, given: Sequence[Fact] | None) -> Sequence[Fact]:
        """Return the facts of a body's outputs; with facts of its inputs, all nodes are visited."""
        for value, fact in zip(body.inputs, given or (), strict=False):
            self.set(value, fact)
        self.nesting += given is not None
        self.run_graph(body)
        facts = [self.of(value) for value in body.outputs]
        self.nesting -= given is not None
        return facts

    def _of_bodies(self, node: ir.Node, inputs: Sequence[Fact | None]) -> Sequence[Fact]:
        """Return the facts of the outputs of a node with subgraphs, which are visited."""
        graphs = subgraphs_of(node)
        if node.domain == "" and node.op_type == "If":
            outputs = [self._run_body(graph, None) for graph in graphs]
            condition = None if inputs[0] is None else inputs[0].known
            if condition is not None and condition.size == 1:
                taken = node.attributes["then_branch" if condition.item() else "else_branch"]
                return outputs[graphs.index(taken.as_graph())]
            pairs = zip(*outputs, strict=False)
            return [common(self.algebra, facts[0], facts[-1]) for facts in pairs]
        if node.domain == "" and node.op_type == "Loop":
            given = [UNKNOWN if f is None else f for f in inputs[2:]]
            (body,) = graphs
            if len(body.inputs) == 2 + len(given) and len(body.outputs) > len(given):
                mark = len(self.algebra.atoms)  # later atoms belong to an iteration
                made = self._repeat(body, given)
                others = made[len(given) :]
                ends = body.outputs[1 + len(given) :]
                has_a_turn = _has_a_turn(inputs)
                turns = self.algebra.unknown(low=0)
                stacked = [
                    self._stacked(f, f.shape if has_a_turn else v.shape, mark, turns)
                    for f, v in zip(others, ends, strict=True)
                ]
                return [*made[: len(given)], *stacked]
        for graph in graphs:
            self._run_body(graph, [UNKNOWN] * len(graph.inputs))
        return []

    def _repeat(self, body: ir.Graph, given: Sequence[Fact]) -> Sequence[Fact]:
        """Return the facts of a Loop's carried values at the end, then of others in each iteration.

        At first, all facts are assumed to hold as before the first iteration. Those that the body
        changes are then dropped, until the rest holds.
        """
        # onnxruntime gives an iteration number that is declared with axes one; the condition is
        # that of the first iteration, as declared, or an output of the body
        shape = (1,) if body.inputs[0].shape else ()
        turn = (of_type(ir.DataType.INT64, shape, self.algebra), Fact(ir.DataType.BOOL))
        facts = given
        for _ in range(_ATTEMPTS if self.nesting < _DEEPEST_TRIAL else 0):
            made = self._run_body(body, (*turn, *facts))[1:]
            before = facts
            facts = [common(self.algebra, a, b) for a, b in zip(given, made, strict=False)]
            if all(
                _kept(g, a) == _kept(g, b) for g, a, b in zip(given, before, facts, strict=True)
            ):
                return [*facts, *made[len(given) :]]
        facts = [Fact(fact.dtype) for fact in given]  # in ONNX only shapes may vary
        return [*facts, *self._run_body(body, (*turn, *facts))[1 + len(given) :]]

    def _stacked(
        self, fact: Fact, shape: Shape | ir.Shape | None, mark: int, turns: Number
    ) -> Fact:
        """Return the results of all iterations, stacked: sizes that may vary are unknown outside.

        Without an iteration, onnxruntime uses the shape in the file, which may be wrong for others.
        """
        if shape is None or fact.shape is None or len(shape) != fact.rank:
            return Fact(fact.dtype)
        sizes = [
            size
            if size == other and all(k < mark for k in self.algebra.atoms_in(size))
            else self.algebra.unknown(low=0)
            for size, other in zip(fact.shape, shape, strict=True)
        ]
        return of_type(fact.dtype, [turns, *sizes], self.algebra)

    def _source(self, value: ir.Value) -> Fact:
        """Return the facts of an initializer, a Constant or an input of the model."""
        tensor = self.constness.tensor(value)
        if tensor is None:
            scope = self.scopes.find(value.graph)
            is_input = scope is not None and value.is_graph_input() and not scope.in_function
            return self._declared(value) if is_input else UNKNOWN
        # for elements other than sizes only dtype and shape, until an op needs more
        fact = self.table.shared(Fact(tensor.dtype, sizes_of(tensor)))
        return self._in_full(value, fact) if tensor.dtype in SIZE_DTYPES else fact

    def _in_full(self, value: ir.Value, fact: Fact) -> Fact:
        """Return the fact of a value with the elements of a small constant of any dtype."""
        if fact.known is not None or fact.dtype is None or not is_small(fact.shape or ()):
            return fact
        if not self.constness.is_constant(value):
            return fact
        array = self.constness.array(value)
        return fact if array is None else self.table.shared(of_array(array, fact.dtype))

    def _declared(self, value: ir.Value) -> Fact:
        """Return the type of a model input, which the runtime enforces."""
        if not isinstance(value.type, ir.TensorType):
            return UNKNOWN
        if value.shape is None:
            return self.table.shared(Fact(value.dtype))
        # some exporters write 0 or -1 for an unknown size
        sizes: list[Number] = [
            dim if isinstance(dim, int) and dim > 0 else self.algebra.symbol(name_of(dim))
            for dim in value.shape
        ]
        return self.table.shared(of_type(value.dtype, sizes, self.algebra))

    def _visit(self, node: ir.Node, scope: Scope | None) -> None:
        """Infer the facts of a node's outputs."""
        facts = self._facts
        self._read[node] = node.inputs
        self.journal.add(node)
        algebra = self.algebra
        outer, algebra.required, before = algebra.required, [], algebra.questions
        results = () if scope is None else self._results(node, scope)
        if algebra.questions > before:
            self._asking.add(node)
        if algebra.required and node.graph is self.model.graph:
            self._required[node] = algebra.required
        algebra.required = outer
        outputs = node.outputs
        facts.update(zip(outputs, chain(results, repeat(UNKNOWN)), strict=False))
        if self._decided and outputs and outputs[0] in self._decided:
            facts[outputs[0]] = self._decided[outputs[0]]

    def _results(self, node: ir.Node, scope: Scope) -> Sequence[Fact]:
        values = self._read[node]
        if not values and is_constant_node(node):
            return [self._source(node.outputs[0])]
        facts = self._facts
        inputs = [None if v is None else facts[v] if v in facts else self._find(v) for v in values]
        if node in self.scopes.parents:
            return list(map(self.table.shared, self._of_bodies(node, inputs)))
        if scope.in_function and has_references(node):
            return []
        if self._functions and node.op_identifier() in self._functions:
            return []
        # the kernel may compute results from known sizes
        listed = [fact for fact in inputs if fact is not None and fact.items is not None]
        if listed or Trait.SIZED_BY_FLOATS in definition_of(node).traits:
            pairs = zip(values, inputs, strict=True)
            inputs = [f if v is None or f is None else self._in_full(v, f) for v, f in pairs]
        results = self._applied(node, inputs, scope.opsets)
        for fact in results:
            if fact.dtype in SIZE_DTYPES and fact.known is None:
                # the evaluator may compute results without a shape function
                return [self._in_full(v, f) for v, f in zip(node.outputs, results, strict=False)]
        return results

    def _applied(
        self, node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int]
    ) -> Sequence[Fact]:
        """Return the facts of a node's outputs, computed once for equal ops and operands."""
        algebra = self.algebra
        key = None
        content = content_of_attributes(node.attributes.data.values())
        if content is not None:
            domain = node.domain
            outputs = node.outputs
            made = len(outputs) == 1 or tuple([bool(output.name) for output in outputs])
            key = (node.op_type, domain, opsets.get(domain), made, content, *inputs)
            found = self._found.get(key)
            if found is not None:
                results, required, questions = found
                algebra.required += required
                algebra.questions += questions
                return results
        unnamed = algebra.unnamed
        before = len(algebra.required)
        asked = algebra.questions
        results = list(map(self.table.shared, results_of(node, inputs, opsets, algebra)))
        if key is not None and unnamed == algebra.unnamed:  # otherwise it has new symbols each time
            self._found[key] = results, algebra.required[before:], algebra.questions - asked
        return results


def _has_a_turn(inputs: Sequence[Fact | None]) -> bool:
    """Return whether a Loop has at least one iteration in every run."""
    most, condition = (None if f is None else f.known for f in inputs[:2])
    return (inputs[0] is None or (most is not None and bool((most > 0).all()))) and (
        inputs[1] is None or (condition is not None and bool(condition.all()))
    )


def _kept(given: Fact, fact: Fact) -> tuple[object, ...]:
    """Return the parts of a fact that are equal to those of another one."""
    sizes = zip(given.shape or (), fact.shape or (), strict=False)
    return fact is given, fact.dtype, fact.rank, [a == b for a, b in sizes]
