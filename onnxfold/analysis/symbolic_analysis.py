"""Inference of the shapes and small values of a complete model, with updates after changes.

Some conditions have the same outcome in every valid run, because the other outcome makes the run
fail. For example, TorchScript exports ``squeeze(x, 1)`` as
``If(size of axis 1 == 1) Squeeze(x) else x``. The rank of the result is unknown, but an LSTM
requires a certain rank. The analysis propagates both outcomes through the graph. If a node has
invalid inputs for one outcome, the condition has the other outcome in every valid run.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, MutableMapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.propagation import FactPropagation
from onnxfold.ir.graphs import nodes_within, root_graphs, subgraphs_of
from onnxfold.ir.onnx_ir_private import is_unused, nodes_in, nodes_of
from onnxfold.ir.symbolic.fact import Fact, of_array
from onnxfold.support.forks import cached_property

ASSUMPTIONS = (
    "The model runs on its inputs: operands that broadcast have compatible sizes, no divisor is 0, "
    "and no executed branch yields a rank that a later Conv or LSTM rejects.",
    "Dims of the inputs that have the same name have the same size.",
    "Sizes, and the integers that a model computes from them, do not overflow their dtypes.",
    "No Reshape has two axes that are empty independently of each other, both in the same run.",
    "Images that are padded before a convolution or a pool have pixels.",
    "The end 2147483647 of a Slice means the end of the axis, as ONNX defines.",
)
"""Assumptions about valid models and inputs."""

_Values = set[ir.Value | None]
# Maximum number of rounds in which requirements and decided conditions provide further facts.
_MAX_ROUNDS = 4


class SymbolicAnalysis(FactPropagation):
    """The facts of every value of a model, with updates after changes."""

    @cached_property
    def atoms_of_inputs(self) -> set[int]:
        """The indices of the atoms in sizes of the model's inputs."""
        sizes = [n for v in self.model.graph.inputs for n in self.of(v).shape or ()]
        return {k for n in sizes for k in self.algebra.atoms_in(n)}

    def run(self) -> None:
        """Infer the facts of all values. This is faster than inferring them on demand.

        The requirements of nodes that every run executes imply further facts.
        """
        for graph in root_graphs(self.model):
            self.run_graph(graph)
        # after a condition is decided, every run executes the same branch, which adds requirements
        for _ in range(_MAX_ROUNDS if self.scopes.parents else 1):
            affected: Collection[ir.Node] = ()
            if self._required:
                needed = self._needed_nodes(self.model.graph)
                required = [
                    n for k, numbers in self._required.items() if k in needed for n in numbers
                ]
                self._required.clear()
                if self.algebra.raise_lower_bounds(required):
                    self._cached_results.clear()
                    affected = frozenset(self._bound_dependent)
            decided: dict[ir.Value, Fact] = {}
            if any(map(_is_if, self.scopes.parents)):
                self._decide(self.model.graph, decided)
            if not affected and not decided:
                break
            self._decided |= decided
            self._facts.update(decided)
            self.update(decided, affected)

    def _needed_nodes(self, graph: ir.Graph) -> set[ir.Node]:
        """Return the nodes on which the graph's outputs depend. Runtimes run only these nodes."""
        nodes = nodes_in(graph)
        needed_values = _Values(graph.outputs)
        needed_nodes = set[ir.Node]()
        if not self.scopes.parents and not any(map(is_unused, nodes)):
            return set(nodes)
        for node in reversed(nodes_of(graph)):
            if not needed_values.isdisjoint(node.outputs):
                needed_nodes.add(node)
                needed_values.update(
                    self.needed(node) if node in self.scopes.parents else node.inputs
                )
        return needed_nodes

    def update(self, changed: Iterable[ir.Value] = (), affected: Collection[ir.Node] = ()) -> None:
        """Visit nodes again whose facts may have changed.

        These are ``affected`` nodes, nodes with replaced or ``changed`` inputs, and the parents of
        subgraphs with such nodes.
        """
        new = _Values(changed)
        read = self._read
        parents = self.scopes.parents
        for graph in root_graphs(self.model):
            for node in nodes_of(graph):
                visited = nodes_within((node,)) if node in parents else (node,)
                for inner in visited:
                    inputs = inner.inputs
                    learned = inner in affected or not new.isdisjoint(inputs)
                    if learned or read.get(inner) is not inputs:
                        self._visit_again(node, new, learned or inner is not node)
                        break

    def _visit_again(self, node: ir.Node, changed: _Values, learned: bool) -> None:
        """Visit a node with replaced inputs, or with inputs about which facts were ``learned``.

        A result keeps its facts unless the new ones are at least as specific. Results with new
        facts are added to ``changed``.
        """
        facts = self._facts
        constness = self.constness
        before = self._read.get(node)
        olds = [facts.get(value) for value in node.outputs]
        self.journal.add(node)
        self._read[node] = node.inputs
        if before is None or not all(olds):
            # the node was not visited yet, or a rewrite set its facts
            changed.update(v for v, old in zip(node.outputs, olds, strict=True) if old is None)
            return
        for body in subgraphs_of(node):
            for inner in body.all_nodes():
                for value in inner.outputs:
                    constness.has_risen(value)
        risen = [constness.has_risen(value) for value in node.outputs]
        fact_of = facts.get
        after = node.inputs
        may_be_same = not learned and not any(risen) and len(before) == len(after)
        if may_be_same and all(
            one is other or (one and other and fact_of(one) is fact_of(other) is not None)
            for one, other in zip(before, after, strict=True)
        ):
            return
        self.nesting += 1
        self._visit(node, self.scopes.find(node.graph))
        self.nesting -= 1
        for value, old, is_constant in zip(node.outputs, olds, risen, strict=True):
            assert old is not None
            new = facts[value]
            if is_constant or (new is not old and _specificity(new) >= _specificity(old)):
                changed.add(value)
            else:
                facts[value] = old

    def _decide(self, graph: ir.Graph, decided: dict[ir.Value, Fact]) -> None:
        """Add the conditions of Ifs with one outcome in every valid run to ``decided``.

        The value in ``decided`` is the fact of the outcome. A run executes all needed nodes of the
        graph or none. Each value is followed for only one condition.
        """
        nodes = nodes_of(graph)
        needed = self._needed_nodes(graph)
        followed: set[ir.Value] = set()
        for index, node in enumerate(nodes):
            if not _is_if(node):
                continue
            for branch in subgraphs_of(node):
                self._decide(branch, decided)
            condition = node.inputs[0]
            if condition is None or condition in followed:
                continue
            producer = condition.producer()
            fact = self.of(condition)
            if producer is None or producer.graph is not graph:
                continue  # the graph of the condition may run without this graph
            if fact.known is None and fact.static_shape in ((), (1,)):
                shape = fact.static_shape or ()
                outcomes = [of_array(np.full(shape, k, bool), ir.DataType.BOOL) for k in (1, 0)]
                outcome = self._only_outcome(nodes[index:], condition, outcomes, needed, followed)
                if outcome is not None:
                    decided[condition] = outcome

    def _only_outcome(
        self,
        nodes: Sequence[ir.Node],
        condition: ir.Value,
        outcomes: Sequence[Fact],
        needed: Collection[ir.Node],
        followed: set[ir.Value],
    ) -> Fact | None:
        """Return the only outcome for which no needed node fails; None if no outcome is excluded.

        The values whose facts differ between the outcomes are added to ``followed``.
        """
        hypotheses = [{condition: outcome} for outcome in outcomes]
        followed.add(condition)
        for node in nodes:
            read = self.needed(node) if node in self.scopes.parents else node.inputs
            if hypotheses[0].keys().isdisjoint(read):
                continue
            one, other = (self._suppose(node, hypothesis) for hypothesis in hypotheses)
            if one is not None and other is not None:
                for value, *facts in zip(node.outputs, one, other, strict=False):
                    if value not in followed and _outline(facts[0]) != _outline(facts[1]):
                        followed.add(value)
                        for hypothesis, fact in zip(hypotheses, facts, strict=True):
                            hypothesis[value] = self.table.shared(fact)
            elif one is not other and node in needed:
                return outcomes[one is None]
        return None

    def _suppose(
        self, node: ir.Node, hypothesis: MutableMapping[ir.Value, Fact]
    ) -> Sequence[Fact] | None:
        """Return the facts of a node's outputs under a hypothesis; None if the node fails.

        The hypothesis contains facts that replace the facts of some values.
        """
        scope = self.scopes.find(node.graph)
        assert scope is not None
        algebra = self.algebra
        facts = self._facts
        requirements = algebra.required
        self._facts = ChainMap({}, hypothesis, facts)
        algebra.required = []
        self.nesting += 1
        results = self._results(node, scope)
        self.nesting -= 1
        fails = any(algebra.high(number) < 0 for number in algebra.required)
        self._facts = facts
        algebra.required = requirements
        return None if fails else results


def _is_if(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "If"


def _outline(fact: Fact) -> tuple[object, ...]:
    """Return the dtype, the shape and the known elements of a fact, with -1 for symbolic sizes."""
    sizes = None
    if fact.shape is not None:
        sizes = [d if isinstance(d, int) else -1 for d in fact.shape]
    known = None if fact.known is None else fact.known.tobytes()
    return fact.dtype, sizes, known


def _specificity(fact: Fact) -> tuple[int, ...]:
    """Return a sort key that is greater for more specific facts. Symbolic sizes do not count."""
    shape = fact.shape or ()
    items = fact.items
    numbers = 0 if items is None else sum(isinstance(n, int) for n in items.ravel().tolist())
    return (
        fact.dtype is not None,
        fact.type_proto is not None or fact.shape is not None,
        sum(isinstance(size, int) for size in shape),
        items is not None,
        numbers if fact.known is None else 1 << 20,
    )
