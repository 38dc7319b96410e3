"""Subgraphs that stay whole: those of which a runtime makes one kernel when it loads the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxfold.onnx_ir_private import uses
from onnxfold.rewrite.facts import Facts
from onnxfold.rewrite.index import RuleIndex
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.matcher import find_match
from onnxfold.rewrite.rule import Rule

# A value with more users than this is no step inside a pattern: their number is not bounded.
_WIDE = 16


class KeptPatterns:
    """The patterns that rules must leave whole, in one model.

    Args:
        rules: Rules of which those that keep something are taken.
        facts: The model.
    """

    def __init__(self, rules: Iterable[Rule], facts: Facts) -> None:
        self._rules = [rule for rule in rules if rule.keeps]
        self._facts = facts
        self._indexes: dict[ir.Graph, RuleIndex] = {}

    def cut_by(self, match: Match) -> Rule | None:
        """A pattern of which a match has some nodes and not all; None if there is none."""
        if not self._rules:
            return None
        taken = match.nodes().keys()
        for node in self._near(taken):
            for kept in self._index(node).candidates(node):
                found = find_match(kept, node, self._facts)
                if found is None:
                    continue
                nodes = found.nodes().keys()
                if nodes & taken and not nodes <= taken:
                    return kept
        return None

    def _near(self, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
        """The nodes, and those below them from which a pattern reaches up to them."""
        found = dict.fromkeys(nodes)
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
