"""Subgraphs that stay whole: those of which a runtime makes one kernel when it loads the model."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence, Set

import onnx_ir as ir

from onnxfold.onnx_ir_private import uses
from onnxfold.rewrite.facts import Facts
from onnxfold.rewrite.index import RuleIndex
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.matcher import find_match
from onnxfold.rewrite.patterns import AnyOf, Expression, Op, Optional
from onnxfold.rewrite.rule import Rule

# A value with more users than this is no step inside a pattern: their number is not bounded.
_WIDE = 16


class KeptPatterns:
    """The patterns that rules must leave whole, in one model.

    They are found once, and then where the model changes.

    Args:
        rules: Rules of which those that keep something are taken.
        facts: The model.
    """

    def __init__(self, rules: Iterable[Rule], facts: Facts) -> None:
        self._rules = [rule for rule in rules if rule.keeps]
        self._op_types: set[str] = set()
        """Those that nodes have, or had."""
        self._facts = facts
        self._indexes: dict[ir.Graph, RuleIndex] = {}
        self._holding: dict[ir.Node, dict[tuple[Rule, ir.Node], None]] | None = None
        """For each node in a pattern: which pattern it is, and the last node of that."""

    def cut_by(self, match: Match) -> Rule | None:
        """A pattern of which a match has some nodes and not all; None if there is none."""
        if not self._rules:
            return None
        if self._holding is None:
            self._holding = {}
            self._look_at([node for graph in self._facts.scopes.graphs() for node in graph])
        if not self._holding:
            return None
        taken = match.nodes.keys()
        for node in taken:
            for kept, end in self._holding.get(node, ()):
                # the model may have changed since
                still = frozenset() if end.graph is None else self._nodes(kept, end)
                if node in still and not still <= taken:
                    return kept
        return None

    def note_change(self, added: Sequence[ir.Node]) -> None:
        """These nodes are new: patterns may have come into being."""
        if self._holding is not None:
            self._look_at(added)

    def _look_at(self, added: Sequence[ir.Node]) -> None:
        """Remember the patterns that have some of these nodes."""
        assert self._holding is not None
        self._op_types.update(node.op_type for node in added)
        possible = {rule for rule in self._rules if _needed_by(rule) <= self._op_types}
        if not possible:
            return
        for end in self._near(added):
            for kept in self._index(end).candidates(end):
                for node in self._nodes(kept, end) if kept in possible else ():
                    self._holding.setdefault(node, {})[kept, end] = None

    def _nodes(self, kept: Rule, end: ir.Node) -> Set[ir.Node]:
        """The nodes of a pattern that ends at a node; none if it does not."""
        found = find_match(kept, end, self._facts)
        return frozenset() if found is None else found.nodes.keys()

    def _near(self, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
        """The nodes, and those below them from which a pattern reaches up to them."""
        found = dict.fromkeys(node for node in nodes if node.graph is not None)
        last = list(found)
        steps = 1
        while last:
            yield from last
            steps += 1
            below: dict[ir.Node, None] = {}
            for node in last:
                if steps <= self._index(node).reach:
                    users = [use.node for value in node.outputs for use in uses(value)]
                    below.update(dict.fromkeys(users) if len(users) <= _WIDE else {})
            last = [node for node in below if node not in found]
            found.update(dict.fromkeys(last))

    def _index(self, node: ir.Node) -> RuleIndex:
        graph = node.graph
        assert graph is not None
        if graph not in self._indexes:
            opsets = self._facts.scopes.of(graph).opsets
            self._indexes[graph] = RuleIndex(self._rules, opsets, self._facts)
        return self._indexes[graph]


@functools.cache
def _needed_by(rule: Rule) -> frozenset[str]:
    return _needed(rule.pair.patterns)


def _needed(patterns: Iterable[Expression]) -> frozenset[str]:
    """The op types without which patterns match nothing."""
    needed: frozenset[str] = frozenset()
    for pattern in patterns:
        if isinstance(pattern, AnyOf):
            needed |= frozenset.intersection(*(_needed([choice]) for choice in pattern.choices))
        elif not isinstance(pattern, Optional):
            needed |= _needed(pattern.children())
        if isinstance(pattern, Op) and len(pattern.op_types) == 1:
            needed |= {pattern.op_types[0]}
    return needed
