"""Shapes and small values of a model: of each value when it is asked for, once."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence

import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.scopes import Scope, Scopes
from onnxfold.analysis.symbolic import control_flow, suppositions
from onnxfold.analysis.symbolic.application import Applications
from onnxfold.analysis.symbolic.elementwise import is_small
from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import (
    SIZE_DTYPES,
    UNKNOWN,
    Fact,
    FactTable,
    of_array,
    of_type,
)
from onnxfold.graphs import captured_values, has_references, is_constant_node, subgraphs_of
from onnxfold.onnx_ir_private import nodes_of
from onnxfold.ops import Trait, ops
from onnxfold.storage import sizes_of

_Values = set[ir.Value | None]
_MOST_ROUNDS = 4
_SIZED_BY_FLOATS = frozenset(ops(Trait.SIZED_BY_FLOATS))


class SymbolicAnalysis:
    """What is known of every value of a model.

    The ``value_info`` that a file carries is not believed: tools leave stale ones behind. Answers
    stay right while the graph is rewritten, as what a node computes never changes; values that a
    rewrite makes are looked at like all others, when they are asked for.

    What a call of one of the model's functions makes is not known; the pass ``inline-functions``
    puts their nodes in its place.

    Args:
        model: The model, its nodes in an order in which they can run.
        scopes: Its scopes, if they are known already.
        known: Its constants, likewise.
    """

    def __init__(
        self, model: ir.Model, *, scopes: Scopes | None = None, known: KnownValues | None = None
    ) -> None:
        self.model = model
        self.algebra = Algebra()
        self.scopes = scopes or Scopes(model)
        self.known = known or KnownValues(self.scopes)
        self._facts: MutableMapping[ir.Value, Fact] = {}
        self._decided: dict[ir.Value, Fact] = {}
        """Conditions that are known by what would fail otherwise."""
        self._read: dict[ir.Node, Sequence[ir.Value | None]] = {}
        """What each node read when it was visited: onnx-ir makes another tuple of other inputs."""
        self.table = FactTable()
        """What is known of values: values of which the same is known have one fact."""
        self._applications = Applications(self.algebra, self.table)
        self.nesting = 0
        """How many bodies the graph that is being visited is in: they are looked at anew."""
        self._required: dict[ir.Node, list[Number]] = {}
        """What the nodes of the main graph fail on unless it is 0 or more."""
        self._asking: set[ir.Node] = set()
        """Nodes whose results depend on what some expressions are never below or above."""

    def of(self, value: ir.Value) -> Fact:
        """Return what is known of a value."""
        found = self._facts.get(value)
        return found if found is not None else self._find(value)

    def snapshot(self) -> Mapping[ir.Value, Fact]:
        """Return what is known by now; it does not change later."""
        return dict(self._facts)

    def run(self) -> None:
        """Find out about all values at once: cheaper than asking for one after the other.

        And find more out by what must hold, or a node that every run visits would fail.
        """
        graphs = (self.model.graph, *(f.graph for f in self.model.functions.values()))
        for graph in graphs:
            self.run_graph(graph)
        # A condition that is decided opens a branch, which requires more.
        for _ in range(_MOST_ROUNDS if self.scopes.parents else 1):
            affected: Collection[ir.Node] = ()
            if self._required and self.algebra.learn(self._required_in_every_run()):
                self._applications = Applications(self.algebra, self.table)
                affected = frozenset(self._asking)
            decided = suppositions.decided(self) if self.scopes.parents else {}
            if not affected and not decided:
                break
            self._decided |= decided
            self._facts.update(decided)
            changed = _Values(decided)
            for graph in graphs:
                for node in nodes_of(graph):
                    if (
                        node in affected
                        or node in self.scopes.parents
                        or not changed.isdisjoint(node.inputs)
                    ):
                        self._visit_again(node, changed)

    def _required_in_every_run(self) -> Iterator[Number]:
        """Yield what nodes of the main graph require that an output is made of: runtimes run no
        other.
        """
        needed: _Values = set(self.model.graph.outputs)
        holders = self.scopes.parents
        for node in reversed(nodes_of(self.model.graph)):
            if not needed.isdisjoint(node.outputs):
                needed.update(self.needed(node) if node in holders else node.inputs)
                yield from self._required.pop(node, ())
        self._required.clear()

    def set(self, value: ir.Value, fact: Fact) -> None:
        """Remember what is known of a value."""
        self._facts[value] = self.table.shared(fact)

    def same(self, old: ir.Value, new: ir.Value) -> None:
        """One value takes the other's place.

        Where nothing can be inferred for ``new``, which an op of another domain may make, what is
        known of ``old`` holds.
        """
        known, found = self.of(old), self.of(new)
        if found.other is None and (found.dtype is None or found.shape is None):
            dtype = known.dtype if found.dtype is None else found.dtype
            shape = known.shape if found.shape is None else found.shape
            self.set(new, Fact(dtype, shape) if known.other is None else known)

    # ---------------------------------------------------------------- after changes

    def refresh(self) -> None:
        """Visit the nodes that read other values by now, and those that learn more by it."""
        changed = _Values()
        for graph in (self.model.graph, *(f.graph for f in self.model.functions.values())):
            for node in self._stale_nodes(graph, changed):
                if not changed.isdisjoint(node.inputs) or not self._reads_the_same(node):
                    self._visit_again(node, changed)

    def _stale_nodes(self, graph: ir.Graph, changed: _Values) -> Iterator[ir.Node]:
        """Yield the nodes that read others, or ``changed`` ones, or hold a node that does; while it
        grows.
        """
        read, holders = self._read, self.scopes.parents
        for node in nodes_of(graph):
            inputs = node.inputs
            is_stale = read.get(node) is not inputs or not changed.isdisjoint(inputs)
            if not is_stale and node in holders:
                inner = (self._stale_nodes(body, changed) for body in subgraphs_of(node))
                is_stale = any(True for nodes in inner for _ in nodes)
            if is_stale:
                yield node

    def _reads_the_same(self, node: ir.Node) -> bool:
        """Return whether no more is known of what a node reads by now than of what it read before;
        this is remembered then.
        """
        before = self._read.get(node, ())
        if node in self.scopes.parents or len(before) != len(node.inputs):
            return False
        facts, is_constant = self._facts, self.known.is_constant
        for old, new in zip(before, node.inputs, strict=True):
            if old is not new and (
                old is None
                or new is None
                or facts.get(old) is not self.of(new)
                or (is_constant(new) and not is_constant(old))
            ):
                return False
        self._read[node] = node.inputs
        return True

    def _visit_again(self, node: ir.Node, changed: _Values) -> None:
        facts = self._facts
        before = [facts.get(value) for value in node.outputs]
        if node not in self._read or not all(before):
            # it was never visited, or a rewrite said what is known
            self._read[node] = node.inputs
            for value, fact in zip(node.outputs, before, strict=True):
                if fact is None:
                    changed.add(value)
            return
        scope = self.scopes.find(node.graph)
        if node in self.scopes.parents:
            for body in subgraphs_of(node):
                for inner in body.all_nodes():
                    for value in inner.outputs:
                        self.known.ask_again(value)
            with self.again():
                self._visit(node, scope)
        else:
            self._visit(node, scope)
        for value, old in zip(node.outputs, before, strict=True):
            assert old is not None
            is_constant = self.known.ask_again(value)
            if _says_more(facts[value], old) or is_constant:
                changed.add(value)
            else:
                facts[value] = old

    # ---------------------------------------------------------------- on demand

    def _find(self, value: ir.Value) -> Fact:
        facts = self._facts
        pending = [value]
        while pending:
            current = pending[-1]
            if current in facts:
                pending.pop()
                continue
            node = current.producer() or self._body_of(current)
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

    def _body_of(self, value: ir.Value) -> ir.Node | None:
        """Return the node that feeds an input of a body; None for any other value."""
        if not value.is_graph_input():
            return None
        scope = self.scopes.find(value.graph)
        return None if scope is None else scope.parent

    def needed(self, node: ir.Node) -> list[ir.Value]:
        """Return the values that decide about the results of a node: those its graphs read among
        them.
        """
        needed = [v for v in node.inputs if v is not None]
        if node in self.scopes.parents:
            needed.extend(captured_values(node))
        return needed

    # ---------------------------------------------------------------- graphs

    def run_graph(self, graph: ir.Graph) -> None:
        """Visit the nodes of a graph whose inputs have facts."""
        facts, scope = self._facts, self.scopes.find(graph)
        for node in nodes_of(graph):
            outputs = node.outputs
            if self.nesting or not outputs or outputs[0] not in facts:
                self._visit(node, scope)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Graphs that run meanwhile forget what was known of their values."""
        self.nesting += 1
        try:
            yield
        finally:
            self.nesting -= 1

    # ---------------------------------------------------------------- values without a producer

    def _source(self, value: ir.Value) -> Fact:
        """Return an initializer, a Constant or an input of the model."""
        tensor = self.known.tensor(value)
        if tensor is None:
            scope = self.scopes.find(value.graph)
            is_input = scope is not None and value.is_graph_input() and not scope.in_function
            return self._declared(value) if is_input else UNKNOWN
        # of other elements than sizes only dtype and shape, until an op asks for more
        fact = self.table.typed(tensor.dtype, sizes_of(tensor))
        return self._in_full(value, fact) if tensor.dtype in SIZE_DTYPES else fact

    def _in_full(self, value: ir.Value, fact: Fact) -> Fact:
        """Return what is known of a value, with the elements of a small constant of any dtype."""
        if fact.known is not None or fact.dtype is None or not is_small(fact.shape or ()):
            return fact
        if not self.known.is_constant(value):
            return fact
        array = self.known.array(value)
        return fact if array is None else self.table.shared(of_array(array, fact.dtype))

    def _are_known(self, values: Sequence[ir.Value | None], facts: Sequence[Fact | None]) -> bool:
        """Return True if all elements of all values may be known, and some are sizes or made of
        them.
        """
        listed = [fact for fact in facts if fact is not None and fact.items is not None]
        if not listed or any(fact.is_symbolic for fact in listed):
            return False
        return all(
            value is None or fact is None or fact.items is not None or self.known.is_constant(value)
            for value, fact in zip(values, facts, strict=True)
        )

    def _declared(self, value: ir.Value) -> Fact:
        """Return the type of a model input: the runtime holds callers to it."""
        if not isinstance(value.type, ir.TensorType):
            return UNKNOWN
        if value.shape is None:
            return self.table.typed(value.dtype, None)
        # some exporters write 0 or -1 for a size that they do not know
        sizes: list[Number] = [
            (dim if dim > 0 else self.algebra.symbol())
            if isinstance(dim, int)
            else self.algebra.symbol(dim.value or None)
            for dim in value.shape
        ]
        return self.table.shared(of_type(value.dtype, sizes, self.algebra))

    # ---------------------------------------------------------------- nodes

    def _visit(self, node: ir.Node, scope: Scope | None) -> None:
        """Find the facts of a node's outputs."""
        facts = self._facts
        self._read[node] = node.inputs
        algebra = self.algebra
        outer, algebra.required, before = algebra.required, [], algebra.questions
        results = () if scope is None else self._results(node, scope)
        if algebra.questions > before:
            self._asking.add(node)
        if algebra.required and node.graph is self.model.graph:
            self._required[node] = algebra.required
        algebra.required = outer
        outputs = node.outputs
        if len(outputs) == len(results) == 1:
            facts[outputs[0]] = results[0]
        else:
            for k, output in enumerate(outputs):
                facts[output] = results[k] if k < len(results) else UNKNOWN
        if self._decided and outputs and outputs[0] in self._decided:
            facts[outputs[0]] = self._decided[outputs[0]]

    def suppose(
        self, node: ir.Node, known: MutableMapping[ir.Value, Fact]
    ) -> Sequence[Fact] | None:
        """Return the facts of a node's outputs if more is known of other values.

        Args:
            node: A node of the main graph, or of a branch in it.
            known: What is supposed.

        Returns:
            None if the node fails in every run then.
        """
        scope = self.scopes.find(node.graph)
        assert scope is not None
        outer = self._facts, self.algebra.required
        self._facts, self.algebra.required = ChainMap({}, known, self._facts), []
        try:
            with self.again():
                results = self._results(node, scope)
            fails = any(self.algebra.high(number) < 0 for number in self.algebra.required)
            return None if fails else results
        finally:
            self._facts, self.algebra.required = outer

    def _results(self, node: ir.Node, scope: Scope) -> Sequence[Fact]:
        if is_constant_node(node):
            return [self._source(node.outputs[0])]
        values = node.inputs
        known = self._facts.get
        inputs = [None if v is None else known(v) or self._find(v) for v in values]
        if node in self.scopes.parents:
            return [self.table.shared(f) for f in control_flow.results(self, node, inputs)]
        functions = self.model.functions
        if scope.in_function and has_references(node):
            return []
        if functions and node.op_identifier() in functions:
            return []
        if node.op_type in _SIZED_BY_FLOATS or self._are_known(values, inputs):
            pairs = zip(values, inputs, strict=True)
            inputs = [f if v is None or f is None else self._in_full(v, f) for v, f in pairs]
        results = self._applications.results(node, inputs, scope.opsets)
        for fact in results:
            if fact.dtype in SIZE_DTYPES and fact.known is None:
                # the evaluator computes what no shape function does
                return [self._in_full(v, f) for v, f in zip(node.outputs, results, strict=False)]
        return results


def _says_more(new: Fact, old: Fact) -> bool:
    """Return whether more is known; a new symbol for what is not known is no news."""
    return new is not old and _knowledge(new) >= _knowledge(old)


def _knowledge(fact: Fact) -> tuple[int, ...]:
    shape, items = fact.shape or (), fact.items
    numbers = 0 if items is None else sum(isinstance(n, int) for n in items.ravel().tolist())
    return (
        fact.dtype is not None,
        fact.other is not None or fact.shape is not None,
        sum(isinstance(size, int) for size in shape),
        items is not None,
        numbers if fact.known is None else 1 << 20,
    )
