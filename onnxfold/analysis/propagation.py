"""Inference of the shapes and small values of a model on demand.

The facts of each value are inferred once. A body that may run more than once is visited again with
other facts of its inputs, because sizes may differ between iterations.
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

# Maximum number of visits of a loop's body to find loop invariants.
_MAX_BODY_VISITS = 3
# Maximum number of nested loops whose invariants are searched. The numbers of visits multiply.
_MAX_TRIAL_DEPTH = 3


class FactPropagation:
    """The facts of every value of a model.

    The ``value_info`` of a file is ignored, because some tools leave stale entries. Facts remain
    valid while the graph is rewritten, because the results of a node never change. The results of
    calls of the model's functions have unknown facts. The nodes must be in topological order.
    """

    def __init__(self, scopes: Scopes, constness: ConstnessAnalysis) -> None:
        self.model = scopes.model
        self._functions = scopes.model.functions
        self.algebra = Algebra()
        self.scopes = scopes
        self.constness = constness
        self._facts: MutableMapping[ir.Value, Fact] = {}
        self._decided: dict[ir.Value, Fact] = {}
        """The facts of conditions that have one outcome in every valid run."""
        self._read: dict[ir.Node, Sequence[ir.Value | None]] = {}
        """The inputs of each node at its last visit.

        onnx-ir creates a new tuple when the inputs change."""
        self.journal: set[ir.Node] = set()
        """Nodes that were visited or got other inputs since a pass last cleared this set."""
        self.table = FactTable()
        """Shares one object among all values with equal facts."""
        self._cached_results: dict[
            tuple[object, ...], tuple[Sequence[Fact], Sequence[Number], int]
        ] = {}
        """Results, requirements and number of bound queries by op and facts of the operands."""
        self.nesting = 0
        """Number of enclosing bodies whose nodes are visited even if their results have facts."""
        self._required: dict[ir.Node, list[Number]] = {}
        """Numbers by node of the main graph. The node fails unless all of them are at least 0."""
        self._bound_dependent: set[ir.Node] = set()
        """Nodes whose results depend on the bounds of expressions."""

    def of(self, value: ir.Value) -> Fact:
        """Return the facts of a value, which are inferred if necessary."""
        facts = self._facts
        return facts[value] if value in facts else self._infer(value)

    def snapshot(self) -> Mapping[ir.Value, Fact]:
        """Return a copy of the facts inferred so far."""
        return dict(self._facts)

    def set(self, value: ir.Value, fact: Fact) -> None:
        """Set the facts of a value."""
        self._facts[value] = self.table.shared(fact)

    def same(self, old: ir.Value, new: ir.Value) -> None:
        """Record that ``new`` replaces ``old``.

        If the dtype or the shape of ``new`` was not inferred, ``new`` gets that of ``old``. If
        ``old`` is not a dense tensor, ``new`` then gets the type of ``old``.
        """
        old_fact = self.of(old)
        new_fact = self.of(new)
        if new_fact.type_proto is not None:
            return
        if new_fact.dtype is None or new_fact.shape is None:
            dtype = old_fact.dtype if new_fact.dtype is None else new_fact.dtype
            shape = old_fact.shape if new_fact.shape is None else new_fact.shape
            self.set(new, Fact(dtype, shape) if old_fact.type_proto is None else old_fact)

    def may_replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Return whether the declared shape of a graph output allows ``new`` to replace ``old``.

        If ``new`` is a graph output, its declared shape is considered, otherwise that of ``old``.
        The declared shape must be correct, unless the output gets no other consumers. The result is
        True if neither value is a graph output.
        """
        output, replaced = (new, old) if new.is_graph_output() else (old, new)
        if output.graph is None or not output.is_graph_output() or new.producer() is None:
            return True  # only results of nodes get the name and the declared shape of an output
        declared = output.shape
        sizes = self.of(new).shape
        outputs = output.graph.outputs
        if declared is None or all(use.node is old.producer() for use in uses(replaced)):
            return True
        if sizes is None or len(sizes) != len(declared):
            return False
        for dim, size in zip(declared, sizes, strict=True):
            expected = dim if isinstance(dim, int) else self.algebra.size_of(dim.value)
            if expected == size:
                continue
            if expected is not None or self._has_other_size(str(dim), size, outputs):
                return False
        return True

    def _has_other_size(self, name: str, size: Number, outputs: Sequence[ir.Value]) -> bool:
        """Return whether the name is declared for a dimension of an output with another size."""
        for output in outputs:
            pairs = zip(output.shape or (), self.of(output).shape or (), strict=False)
            if any(dim == name and other != size for dim, other in pairs):
                return True
        return False

    def _infer(self, value: ir.Value) -> Fact:
        facts = self._facts
        pending = [value]
        while pending:
            current = pending[-1]
            if current in facts:
                pending.pop()
                continue
            node = current.producer()
            if node is None and current.is_graph_input():  # perhaps an input of a body
                scope = self.scopes.find(current.graph)
                node = None if scope is None else scope.parent
            if node is None:
                facts[current] = self._source_fact(current)
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
        """Return the inputs of a node and the outer values that its subgraphs read."""
        values = [v for v in node.inputs if v is not None]
        if node in self.scopes.parents:
            values.extend(captured_values(node))
        return values

    def run_graph(self, graph: ir.Graph) -> None:
        """Infer the facts of the results of a graph's nodes.

        Nodes whose results have facts are visited only if `nesting` is not 0.
        """
        facts = self._facts
        scope = self.scopes.find(graph)
        for node in nodes_of(graph):
            outputs = node.outputs
            if self.nesting or not outputs or outputs[0] not in facts:
                self._visit(node, scope)

    def _run_body(self, body: ir.Graph, inputs: Sequence[Fact] | None) -> Sequence[Fact]:
        """Return the facts of a body's outputs.

        If ``inputs`` is not None, the inputs of the body get these facts. All nodes of the body are
        then visited, even if their results have facts.
        """
        for value, fact in zip(body.inputs, inputs or (), strict=False):
            self.set(value, fact)
        self.nesting += inputs is not None
        self.run_graph(body)
        facts = [self.of(value) for value in body.outputs]
        self.nesting -= inputs is not None
        return facts

    def _results_of_bodies(self, node: ir.Node, inputs: Sequence[Fact | None]) -> Sequence[Fact]:
        """Visit the subgraphs of a node, and return the facts of the node's outputs.

        The result is empty for an invalid Loop, and for all ops except If and Loop.
        """
        graphs = subgraphs_of(node)
        if node.domain == "" and node.op_type == "If":
            outputs = [self._run_body(graph, None) for graph in graphs]
            condition = None if inputs[0] is None else inputs[0].known
            if condition is not None and condition.size == 1:
                branch = node.attributes["then_branch" if condition.item() else "else_branch"]
                return outputs[graphs.index(branch.as_graph())]
            pairs = zip(*outputs, strict=False)
            return [common(self.algebra, facts[0], facts[-1]) for facts in pairs]
        if node.domain == "" and node.op_type == "Loop":
            initial = [UNKNOWN if f is None else f for f in inputs[2:]]
            n_carried = len(initial)
            (body,) = graphs
            if len(body.inputs) == 2 + n_carried and len(body.outputs) > n_carried:
                mark = len(self.algebra.atoms)  # later atoms belong to an iteration
                results = self._repeat(body, initial)
                scanned = body.outputs[1 + n_carried :]
                has_an_iteration = _has_an_iteration(inputs)
                iterations = self.algebra.unknown(low=0)
                stacked = [
                    self._stacked(f, f.shape if has_an_iteration else v.shape, mark, iterations)
                    for f, v in zip(results[n_carried:], scanned, strict=True)
                ]
                return [*results[:n_carried], *stacked]
        for graph in graphs:
            self._run_body(graph, [UNKNOWN] * len(graph.inputs))
        return []

    def _repeat(self, body: ir.Graph, initial: Sequence[Fact]) -> Sequence[Fact]:
        """Return the facts of a Loop's carried values at the end, and of the scanned values.

        Initially, all facts of the carried values before the first iteration are assumed to be
        loop invariants. Facts that the body changes are dropped until all remaining facts are
        invariant. After too many visits, only the dtypes remain.
        """
        # onnxruntime passes an iteration number with one axis if it is declared with axes. The
        # condition has the declared shape in the first iteration, and then the shape of the output.
        shape = (1,) if body.inputs[0].shape else ()
        iteration = (of_type(ir.DataType.INT64, shape, self.algebra), Fact(ir.DataType.BOOL))
        facts = initial
        for _ in range(_MAX_BODY_VISITS if self.nesting < _MAX_TRIAL_DEPTH else 0):
            results = self._run_body(body, (*iteration, *facts))[1:]
            before = facts
            facts = [common(self.algebra, a, b) for a, b in zip(initial, results, strict=False)]
            triples = zip(initial, before, facts, strict=True)
            if all(_invariant_parts(f, a) == _invariant_parts(f, b) for f, a, b in triples):
                return [*facts, *results[len(initial) :]]
        facts = [Fact(fact.dtype) for fact in initial]  # ONNX does not allow other dtypes
        return [*facts, *self._run_body(body, (*iteration, *facts))[1 + len(initial) :]]

    def _stacked(
        self, fact: Fact, shape: Shape | ir.Shape | None, mark: int, iterations: Number
    ) -> Fact:
        """Return the fact of a scan output, which stacks the results of all iterations.

        Sizes that may vary between iterations are unknown, as well as sizes that differ from
        ``shape``. Without iterations, onnxruntime returns the declared shape. Results of iterations
        may have another shape.

        Args:
            fact: The fact of the result of an iteration.
            shape: The declared shape of this result, or the shape in ``fact`` if the Loop has an
                iteration in every run.
            mark: The index of the first atom that belongs to an iteration.
            iterations: The number of iterations.
        """
        if shape is None or fact.shape is None or len(shape) != fact.rank:
            return Fact(fact.dtype)
        sizes = [
            size
            if size == other and all(k < mark for k in self.algebra.atoms_in(size))
            else self.algebra.unknown(low=0)
            for size, other in zip(fact.shape, shape, strict=True)
        ]
        return of_type(fact.dtype, [iterations, *sizes], self.algebra)

    def _source_fact(self, value: ir.Value) -> Fact:
        """Return the facts of an initializer, a Constant or an input of the model.

        The facts of all other values are unknown.
        """
        tensor = self.constness.tensor(value)
        if tensor is None:
            scope = self.scopes.find(value.graph)
            is_input = scope is not None and value.is_graph_input() and not scope.in_function
            return self._declared_fact(value) if is_input else UNKNOWN
        # for dtypes other than those of sizes, elements are read only when an op needs them
        fact = self.table.shared(Fact(tensor.dtype, sizes_of(tensor)))
        return self._with_elements(value, fact) if tensor.dtype in SIZE_DTYPES else fact

    def _with_elements(self, value: ir.Value, fact: Fact) -> Fact:
        """Return the fact of a value, with its elements if the value is a small constant."""
        if fact.known is not None or fact.dtype is None or not is_small(fact.shape or ()):
            return fact
        if not self.constness.is_constant(value):
            return fact
        array = self.constness.array(value)
        return fact if array is None else self.table.shared(of_array(array, fact.dtype))

    def _declared_fact(self, value: ir.Value) -> Fact:
        """Return the declared fact of a model input. Runtimes check the type of each input."""
        if not isinstance(value.type, ir.TensorType):
            return UNKNOWN
        if value.shape is None:
            return self.table.shared(Fact(value.dtype))
        # some exporters write 0 or -1 for unknown sizes
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
        outer_requirements = algebra.required
        algebra.required = []
        queries_before = algebra.bound_queries
        results = () if scope is None else self._results(node, scope)
        if algebra.bound_queries > queries_before:
            self._bound_dependent.add(node)
        if algebra.required and node.graph is self.model.graph:
            self._required[node] = algebra.required
        algebra.required = outer_requirements
        outputs = node.outputs
        facts.update(zip(outputs, chain(results, repeat(UNKNOWN)), strict=False))
        if self._decided and outputs and outputs[0] in self._decided:
            facts[outputs[0]] = self._decided[outputs[0]]

    def _results(self, node: ir.Node, scope: Scope) -> Sequence[Fact]:
        values = self._read[node]
        if not values and is_constant_node(node):
            return [self._source_fact(node.outputs[0])]
        inputs = [None if v is None else self.of(v) for v in values]
        if node in self.scopes.parents:
            return list(map(self.table.shared, self._results_of_bodies(node, inputs)))
        if scope.in_function and has_references(node):
            return []
        if self._functions and node.op_identifier() in self._functions:
            return []
        # if one operand has known elements, a kernel may need the elements of the others
        with_elements = [fact for fact in inputs if fact is not None and fact.items is not None]
        if with_elements or Trait.SIZED_BY_FLOATS in definition_of(node).traits:
            pairs = zip(values, inputs, strict=True)
            inputs = [f if v is None or f is None else self._with_elements(v, f) for v, f in pairs]
        results = self._op_results(node, inputs, scope.opsets)
        for fact in results:
            if fact.dtype in SIZE_DTYPES and fact.known is None:
                # without a shape function, the evaluator may compute the elements
                return [
                    self._with_elements(v, f) for v, f in zip(node.outputs, results, strict=False)
                ]
        return results

    def _op_results(
        self, node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int]
    ) -> Sequence[Fact]:
        """Return the facts of a node's outputs. Equal ops on operands with equal facts share them.

        Facts with new symbols are not shared.
        """
        algebra = self.algebra
        key = None
        content = content_of_attributes(node.attributes.data.values())
        if content is not None:
            domain = node.domain
            outputs = node.outputs
            used_outputs = len(outputs) == 1 or tuple([bool(output.name) for output in outputs])
            key = (node.op_type, domain, opsets.get(domain), used_outputs, content, *inputs)
            cached = self._cached_results.get(key)
            if cached is not None:
                results, required, bound_queries = cached
                algebra.required += required
                algebra.bound_queries += bound_queries
                return results
        unnamed_before = algebra.unnamed
        n_required_before = len(algebra.required)
        queries_before = algebra.bound_queries
        results = list(map(self.table.shared, results_of(node, inputs, opsets, algebra)))
        # a new symbol stands for another number at each node
        if key is not None and algebra.unnamed == unnamed_before:
            self._cached_results[key] = (
                results,
                algebra.required[n_required_before:],
                algebra.bound_queries - queries_before,
            )
        return results


def _has_an_iteration(inputs: Sequence[Fact | None]) -> bool:
    """Return whether a Loop has at least one iteration in every run."""
    count, condition = inputs[:2]
    if count is not None and (count.known is None or not bool((count.known > 0).all())):
        return False
    return condition is None or (condition.known is not None and bool(condition.known.all()))


def _invariant_parts(initial: Fact, fact: Fact) -> tuple[object, ...]:
    """Return the parts of ``initial`` that ``fact`` preserves.

    If the result is the same in two consecutive visits, no further part was dropped.
    """
    sizes = zip(initial.shape or (), fact.shape or (), strict=False)
    return fact is initial, fact.dtype, fact.rank, [a == b for a, b in sizes]
