"""The driver: every node is visited, and again only where something near it has changed."""

from __future__ import annotations

import functools
import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.analysis.symbolic import NotKnown
from onnxfold.errors import OnnxFoldError
from onnxfold.onnx_ir_private import nodes_of, uses
from onnxfold.rewrite.apply import Change, Mismatch, Splicer
from onnxfold.rewrite.build import Refused
from onnxfold.rewrite.facts import Facts
from onnxfold.rewrite.index import RuleIndex
from onnxfold.rewrite.matcher import find_match
from onnxfold.rewrite.rule import Rule, RuleError

logger = logging.getLogger("onnxfold")

# What a function raises that is given numbers which make no sense: an axis that is not there.
_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# More nodes than this, two or more ops above a change, wait for the end to be visited again.
_WIDE = 64
_MOST_AT_A_PLACE = 500
"""Rewrites of what stands for one value of the original model; then its rules are looping."""
MOST_COUNTED = 500
"""So often what a rule would do is counted, as looking takes as long as rewriting."""


@dataclass(frozen=True)
class Loop:
    """Rules that undid each other's work at one place, and were switched off for it."""

    rules: tuple[str, ...]
    value: str
    """The value they kept rewriting."""


@dataclass
class RewriteReport:
    """Counts per rule, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    """How often each rule fired."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """Where each rule fired: the names of the values of the original model, one for each time."""
    inexact: Counter[str] = field(default_factory=Counter)
    """How often each rule fired where it may change bits."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Matches whose replacement would have had another dtype or shape: a mistake in the rule."""
    baffled: Counter[str] = field(default_factory=Counter)
    """Nodes about which a rule of ours could not tell, because what they hold makes no sense."""
    loops: list[Loop] = field(default_factory=list)
    visits: int = 0
    """How often a node was looked at."""

    @property
    def total(self) -> int:
        """Number of rewrites."""
        return self.counts.total()


class Rewriter:
    """Rewrites one model until no rule matches any more.

    Nodes are visited in topological order, main graph, functions and subgraphs alike. After a
    rewrite only the new nodes, the users of the new values, and the users of what lost a user are
    visited again.

    Args:
        model: The model; its graphs must be sorted.
        rules: The rules, of all sets.
        level: 1 for exact rewrites, 2 for inexact ones, too.
        keeps: Says for a value's name whether the node that makes it must stay.
        states: What an earlier run left: only what has changed since, and what patterns reach
            from there, is visited. Empty for a first run.
    """

    def __init__(
        self,
        model: ir.Model,
        rules: Iterable[Rule],
        *,
        level: int = 1,
        keeps: Callable[[str | None], bool] | None = None,
        states: dict[ir.Node, Hashable] | None = None,
    ) -> None:
        self._states = {} if states is None else states
        self._rules = [r for r in rules if level > 1 or r.inexact is not True]
        self._level = level
        self._facts = Facts(model)
        self._keeps = keeps or _keeps_nothing
        self._indexes = {
            graph: RuleIndex(self._rules, self._facts.scopes.of(graph).opsets, self._facts)
            for graph in self._facts.scopes.graphs()
        }
        self._reach = max(index.reach for index in self._indexes.values())
        """How many ops lie on the longest way through a pattern."""
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._skipped = False
        self._place: dict[ir.Node, str] = {}
        self._history: dict[str, Counter[Rule]] = {}
        self._given_up: set[Rule] = set()
        self.report = RewriteReport()

    @functools.cached_property
    def _splicer(self) -> Splicer:
        return Splicer(self._facts, self._keeps)

    def run(self) -> RewriteReport:
        """Rewrite the model.

        Raises:
            RuleError: a rule raised an exception.
        """
        nodes = self._changed() if self._states else self._in_order()
        queue, queued = self._queue, self._queued
        queue.extend(nodes)
        queued.update(nodes)
        while queue or self._add_skipped():
            node = queue.popleft()
            queued.discard(node)
            if node.graph is not None:  # not removed in the meantime
                self.report.visits += 1
                self._visit(node, self._indexes[node.graph].candidates(node))
        self._states.clear()
        self._states.update((node, self._state(node)) for node in self._in_order())
        return self.report

    def _changed(self) -> list[ir.Node]:
        """The nodes that have changed since the last run, and those whose patterns reach them."""
        nodes, states = self._in_order(), self._states
        found = {node for node in nodes if states.get(node) != self._state(node)}
        last = found
        for _ in range(self._reach - 1):
            last = {use.node for node in last for v in node.outputs for use in uses(v)} - found
            found |= last
        return [node for node in nodes if node in found]

    def _state(self, node: ir.Node) -> Hashable:
        """What rules see of a node; another one where a pass has changed something about it."""
        of = self._facts.types.of
        outputs = [(len(uses(v)), v.is_graph_output(), of(v)) for v in node.outputs]
        return (node.inputs, *outputs)

    def _in_order(self) -> list[ir.Node]:
        """All nodes, those of a subgraph before the node that holds it."""
        graphs = reversed(self._facts.scopes.graphs())
        return [node for graph in graphs for node in nodes_of(graph)]

    # ---------------------------------------------------------------- one node

    def _visit(self, node: ir.Node, candidates: Sequence[Rule]) -> None:
        """Apply the first rule that can be applied to a node."""
        for rule in candidates:
            if rule in self._given_up:
                continue
            place = self._place.get(node) or node.outputs[0].name or node.name or ""
            try:
                match = find_match(rule, node, self._facts)
                if match is None or (self._level < 2 and not match.is_exact):
                    continue
                change = self._splicer.apply(match)
            except (Refused, NotKnown):
                continue
            except Mismatch as error:
                self.report.rejected[rule.name] += 1
                logger.warning("%s at %r: %s; not applied", rule.label, place, error)
                continue
            except OnnxFoldError:
                raise
            except Exception as error:
                _tolerate(rule, node, error)
                self.report.baffled[rule.name] += 1
                continue
            self.report.counts[rule.name] += 1
            if not match.is_exact:
                self.report.inexact[rule.name] += 1
            self.report.places.setdefault(rule.name, []).append(place)
            self._place.update(dict.fromkeys(change.added, place))
            self._count(place, rule)
            self._revisit(change)
            return

    def _count(self, place: str, rule: Rule) -> None:
        history = self._history.setdefault(place, Counter())
        history[rule] += 1
        if history.total() < _MOST_AT_A_PLACE:
            return
        looping = [r for r, n in history.items() if n * 10 >= _MOST_AT_A_PLACE]
        self.report.loops.append(Loop(tuple(r.name or r.place for r in looping), place))
        names = ", ".join(r.label for r in looping)
        logger.warning("these rules undo each other at %r, switched off: %s", place, names)
        del self._history[place]
        self._given_up.update(looping)

    # ---------------------------------------------------------------- what to visit again

    def _revisit(self, change: Change) -> None:
        for node in change.added:
            self._enqueue(node)
        self._enqueue_from(change.users)
        for value in change.touched:
            # it may be used once now; how often a constant is used decides nothing
            if len(uses(value)) == 1 and not self._facts.known.is_constant(value):
                self._enqueue_from([use.node for use in uses(value)])

    def _enqueue_from(self, nodes: Sequence[ir.Node]) -> None:
        """Visit nodes again, and those above them whose patterns reach down to them."""
        for step in range(max(self._reach - 1, 1)):
            if step and len(nodes) > _WIDE:
                self._skipped = True  # visited once for all such changes, at the end
                return
            for node in nodes:
                self._enqueue(node)
            nodes = [use.node for node in nodes for v in node.outputs for use in uses(v)]

    def _add_skipped(self) -> bool:
        """Visit all once more if there were nodes that should be; False if there are none."""
        if not self._skipped:
            return False
        self._skipped = False
        for node in self._in_order():
            self._enqueue(node)
        return bool(self._queue)

    def _enqueue(self, node: ir.Node) -> None:
        if node not in self._queued and node.graph is not None:
            self._queued.add(node)
            self._queue.append(node)


def inexact_matches(model: ir.Model, rules: Iterable[Rule]) -> Counter[str]:
    """How often each rule would fire where it may change bits, up to 500; nothing is rewritten.

    Raises:
        RuleError: a rule raised an exception.
    """
    found: Counter[str] = Counter()
    facts = Facts(model)
    inexact = [rule for rule in rules if rule.inexact is not False]
    for graph in facts.scopes.graphs():
        index = RuleIndex(inexact, facts.scopes.of(graph).opsets, facts)
        for node in graph:
            for rule in index.candidates(node):
                if found[rule.name] == MOST_COUNTED:
                    continue
                try:
                    match = find_match(rule, node, facts)
                    found[rule.name] += match is not None and not match.is_exact
                except OnnxFoldError:
                    raise
                except Exception as error:
                    _tolerate(rule, node, error)
    return +found


def _tolerate(rule: Rule, node: ir.Node | None, error: Exception) -> None:
    """A function of a rule raised: ours do for an invalid node, which then stays as it is.

    Raises:
        RuleError: the rule is somebody else's, who wants to know, or it is no such error.
    """
    name = None if node is None else node.name or node.op_type
    message = f"{rule.label} failed: {type(error).__name__}: {error}"
    if not rule.ours or not isinstance(error, _SENSELESS):
        raise RuleError(message, node=name) from error
    logger.debug("%s at %r", message, name)


def _keeps_nothing(name: str | None) -> bool:
    return False
