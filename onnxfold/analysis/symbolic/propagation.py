"""Shapes and small values of a model: of each value when it is asked for, once."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

import onnx_ir as ir

from onnxfold.analysis.content import content_of_attributes
from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.scopes import Scope, Scopes
from onnxfold.analysis.symbolic import control_flow
from onnxfold.analysis.symbolic.application import results_of
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
from onnxfold.graphs import captured_values, has_references, is_constant_node
from onnxfold.onnx_ir_private import nodes_of
from onnxfold.ops import Trait, ops
from onnxfold.storage import sizes_of

_SIZED_BY_FLOATS = frozenset(ops(Trait.SIZED_BY_FLOATS))


class FactPropagation:
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
        self._found: dict[tuple[object, ...], tuple[Sequence[Fact], Sequence[Number], int]] = {}
        """For ops and operands that look alike: the results, what is required for them, and how
        many questions were asked for them."""
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

    # ---------------------------------------------------------------- on demand

    def _find(self, value: ir.Value) -> Fact:
        facts = self._facts
        pending = [value]
        while pending:
            current = pending[-1]
            if current in facts:
                pending.pop()
                continue
            node = current.producer()
            if node is None and current.is_graph_input():  # of a body, the node that feeds it
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

    def _run_body(self, body: ir.Graph, given: Sequence[Fact] | None) -> Sequence[Fact]:
        """Return the facts of a body's outputs; with facts of its inputs, all is visited anew."""
        for value, fact in zip(body.inputs, given or (), strict=False):
            self.set(value, fact)
        self.nesting += given is not None
        self.run_graph(body)
        facts = [self.of(value) for value in body.outputs]
        self.nesting -= given is not None
        return facts

    # ---------------------------------------------------------------- values without a producer

    def _source(self, value: ir.Value) -> Fact:
        """Return an initializer, a Constant or an input of the model."""
        tensor = self.known.tensor(value)
        if tensor is None:
            scope = self.scopes.find(value.graph)
            is_input = scope is not None and value.is_graph_input() and not scope.in_function
            return self._declared(value) if is_input else UNKNOWN
        # of other elements than sizes only dtype and shape, until an op asks for more
        fact = self.table.shared(Fact(tensor.dtype, sizes_of(tensor)))
        return self._in_full(value, fact) if tensor.dtype in SIZE_DTYPES else fact

    def _in_full(self, value: ir.Value, fact: Fact) -> Fact:
        """Return what is known of a value, with the elements of a small constant of any dtype."""
        if fact.known is not None or fact.dtype is None or not is_small(fact.shape or ()):
            return fact
        if not self.known.is_constant(value):
            return fact
        array = self.known.array(value)
        return fact if array is None else self.table.shared(of_array(array, fact.dtype))

    def _declared(self, value: ir.Value) -> Fact:
        """Return the type of a model input: the runtime holds callers to it."""
        if not isinstance(value.type, ir.TensorType):
            return UNKNOWN
        if value.shape is None:
            return self.table.shared(Fact(value.dtype))
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

    def _results(self, node: ir.Node, scope: Scope) -> Sequence[Fact]:
        if is_constant_node(node):
            return [self._source(node.outputs[0])]
        values = node.inputs
        known = self._facts.get
        inputs = [None if v is None else known(v) or self._find(v) for v in values]
        if node in self.scopes.parents:
            results = control_flow.results(self.algebra, node, inputs, self.nesting, self._run_body)
            return list(map(self.table.shared, results))
        functions = self.model.functions
        if scope.in_function and has_references(node):
            return []
        if functions and node.op_identifier() in functions:
            return []
        # the kernel may compute the results where elements are sizes or made of them
        listed = [fact for fact in inputs if fact is not None and fact.items is not None]
        if listed or node.op_type in _SIZED_BY_FLOATS:
            pairs = zip(values, inputs, strict=True)
            inputs = [f if v is None or f is None else self._in_full(v, f) for v, f in pairs]
        results = self._applied(node, inputs, scope.opsets)
        for fact in results:
            if fact.dtype in SIZE_DTYPES and fact.known is None:
                # the evaluator computes what no shape function does
                return [self._in_full(v, f) for v, f in zip(node.outputs, results, strict=False)]
        return results

    def _applied(
        self, node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int]
    ) -> Sequence[Fact]:
        """Return the facts of a node's outputs, found once for ops and operands that look alike."""
        algebra, key = self.algebra, None
        content = content_of_attributes(node.attributes.data.values())
        if content is not None:
            domain = node.domain
            key = (node.op_type, domain, opsets.get(domain), len(node.outputs), content, *inputs)
            found = self._found.get(key)
            if found is not None:
                results, required, questions = found
                algebra.required += required
                algebra.questions += questions
                return results
        unnamed, before, asked = algebra.unnamed, len(algebra.required), algebra.questions
        results = list(map(self.table.shared, results_of(node, inputs, opsets, algebra)))
        if key is not None and unnamed == algebra.unnamed:  # else it is new each time
            self._found[key] = results, algebra.required[before:], algebra.questions - asked
        return results
