"""The driver: it applies rules to all nodes, and then visits only nodes near changes again."""

from __future__ import annotations

import functools
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.ir.onnx_ir_private import nodes_of, uses
from onnxfold.ir.symbolic import Fact, NotKnown
from onnxfold.rewrite.apply import Mismatch, apply
from onnxfold.rewrite.build import Refused, unavailable_op
from onnxfold.rewrite.matcher import find_match
from onnxfold.rewrite.patterns import (
    Constant,
    Expression,
    Literal,
    Op,
    Rest,
    any_of,
    filled,
    omitted,
    op_of,
)
from onnxfold.rewrite.rule import Rule, RuleError
from onnxfold.support.errors import OnnxFoldError

logger = logging.getLogger("onnxfold")

# Exceptions of built-in rules on nodes with invalid numbers, such as an axis that does not exist.
_INVALID_NODE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_MAX_CONSUMERS = 64
"""Maximum number of indirect consumers at one distance that are enqueued after a change.

If there are more, all nodes are visited once more at the end.
"""
_MAX_REWRITES_AT_VALUE = 500
"""Number of rewrites at one value of the original model that shows a loop of rules."""
_MIN_REWRITES_IN_LOOP = _MAX_REWRITES_AT_VALUE // 10
"""Number of rewrites at the value by which a rule belongs to the loop: a tenth of all."""


class Loop(NamedTuple):
    """Rules that were switched off because they undid each other at one value."""

    rules: tuple[str, ...]
    value: str
    """The name of the value."""


@dataclass
class RewriteState:
    """The state of a model after a run of rules."""

    inputs: dict[ir.Node, Sequence[ir.Value | None]] = field(default_factory=dict)
    """The inputs of each node."""
    facts: Mapping[ir.Value, Fact] = field(default_factory=dict)
    """The fact about each value."""


@dataclass
class RewriteReport:
    """Counts of rewrites and failures."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of rewrites by each rule."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """The names of the values of the original model that each rule rewrote."""
    inexact: Counter[str] = field(default_factory=Counter)
    """The number of inexact rewrites by each rule."""
    rejected: Counter[str] = field(default_factory=Counter)
    """The number of matches of each rule whose replacement has another dtype or shape.

    They are caused by an error in the rule.
    """
    failed_on_invalid: Counter[str] = field(default_factory=Counter)
    """The number of nodes with invalid attributes or operands at which a built-in rule failed."""
    loops: list[Loop] = field(default_factory=list)
    visits: int = 0
    """The number of visits of nodes."""


class Rewriter:
    """Rewrites one model until no rule can be applied any more.

    Nodes are visited in topological order, in the main graph, functions and subgraphs. After a
    rewrite, only nodes near the change are visited again:

    - the new nodes,
    - the consumers of the new values,
    - the last consumer of a value that has lost other consumers,
    - the direct and indirect consumers of these consumers, as far as patterns reach.

    Rules that undo each other are switched off.

    Args:
        model: The model; its graphs must be sorted.
        rules: The rules of all sets.
        level: 1 for exact rewrites only, 2 for inexact rewrites, too.
        keeps: Returns whether the producer of a value must be kept.
        state: The state after an earlier run, or None for a first run. `run` updates this state. If
            it is not empty, the run begins only with changed nodes, and with nodes whose patterns
            reach changed nodes.
    """

    def __init__(
        self,
        model: ir.Model,
        rules: Iterable[Rule],
        *,
        level: int = 1,
        keeps: Callable[[ir.Value], bool] | None = None,
        state: RewriteState | None = None,
    ) -> None:
        self._state = state or RewriteState()
        enabled = tuple([r for r in rules if level > 1 or r.inexact is not True])
        self._level = level
        self._facts = facts_of(model)
        self._types = self._facts.types  # the property updates the types after earlier changes
        self._keeps = keeps or (lambda value: False)
        scopes = self._facts.scopes
        self._tables = {}
        opsets = scopes.of(model.graph).opsets
        for graph in scopes.graphs():
            graph_opsets = scopes.of(graph).opsets
            # onnxruntime runs functions at the opsets of the model
            has_same_opsets = graph_opsets.items() <= {**graph_opsets, **opsets}.items()
            graph_rules = enabled if has_same_opsets else ()
            self._tables[graph] = _table_of(graph_rules, tuple(sorted(graph_opsets.items())))
        self._reach = max([table.reach for table in self._tables.values()])
        """The number of ops on the longest path through a pattern."""
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._origins: dict[ir.Value | None, _Origin] = {None: None}
        self._has_skipped_consumers = False
        """Whether a change had too many consumers to enqueue, so that all nodes are visited."""
        self._original_value: dict[ir.Node, str] = {}
        """The name of the value of the original model that each new node computes or replaces."""
        self._history: dict[str, Counter[Rule]] = {}
        """The number of rewrites by each rule at each value of the original model."""
        self._switched_off: set[Rule] = set()
        self.report = RewriteReport()

    def run(self) -> RewriteReport:
        """Rewrite the model, and return the counts of this object.

        Raises:
            RuleError: A rule raised an exception, except for a built-in rule at an invalid node.
        """
        nodes = self._in_order()
        self._enqueue(self._changed(nodes) if self._state.inputs else nodes)
        with np.errstate(all="ignore"):  # numbers of conditions may overflow
            while self._queue or self._has_skipped_consumers:
                if not self._queue:
                    self._has_skipped_consumers = False
                    self._enqueue(self._in_order())
                    continue
                node = self._queue.popleft()
                self._queued.discard(node)
                graph = node.graph
                if graph is not None:  # otherwise an earlier rewrite removed the node
                    self.report.visits += 1
                    if candidates := self._candidates(node, self._tables[graph]):
                        self._visit(node, candidates)
        if self.report.counts:
            nodes = self._in_order()
        self._state.inputs = {node: node.inputs for node in nodes}
        self._state.facts = self._types.snapshot()
        return self.report

    def _changed(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Return the nodes that changed since the last run, and nodes whose patterns reach these.

        A node is changed if it is new, or if its inputs, the facts about its results, or the
        consumers of its results changed.
        """
        before = self._state.inputs
        after = {node: node.inputs for node in nodes}
        changed = {n for n in nodes if n not in before or before[n] is not after[n]}
        # rules may match the producers of values that now have other consumers or other facts
        inputs_before_and_after = [(before.get(node, ()), after[node]) for node in changed]
        inputs_before_and_after += [(old, ()) for node, old in before.items() if node not in after]
        values: set[ir.Value | None] = set()
        for old_inputs, new_inputs in inputs_before_and_after:
            for old, new in zip_longest(old_inputs, new_inputs):
                if old is not new:
                    values.update((old, new))
        old_facts = self._state.facts
        facts = self._types.snapshot()
        values.update(v for v in old_facts if v not in facts or facts[v] is not old_facts[v])
        producers = {value.producer() for value in values if value is not None}
        changed.update(node for node in producers if node is not None and node in after)
        latest = changed
        for _ in range(self._reach - 1):
            consumers = {use.node for node in latest for v in node.outputs for use in uses(v)}
            latest = consumers - changed
            changed |= latest
        return [node for node in nodes if node in changed]

    def _in_order(self) -> list[ir.Node]:
        """Return all nodes, those of a subgraph before the node that contains it."""
        graphs = reversed(self._facts.scopes.graphs())
        return [node for graph in graphs for node in nodes_of(graph)]

    def _candidates(self, node: ir.Node, table: _Table) -> Sequence[Rule]:
        """Return the rules that could match the node, those with the highest benefit first.

        Constant propagation computes most nodes with constant results. For such a node, only rules
        with ``on_constants`` are returned.
        """
        if node.op_type not in table.op_types:
            return ()
        inputs = node.inputs
        origins = self._origins
        for value in inputs:
            if value is not None and value not in origins:
                producer = value.producer()
                op = ("", "") if producer is None else (producer.op_type, producer.domain)
                origins[value] = *op, self._facts.constness.is_constant(value)
        signature = node.op_type, node.domain, tuple([origins[value] for value in inputs])
        rules, on_constants = table.find(signature)
        if rules and self._facts.constness.is_constant(node.outputs[0]):
            return on_constants
        return rules

    def _visit(self, node: ir.Node, candidates: Sequence[Rule]) -> None:
        """Apply the first rule that can be applied to a node, if any, and enqueue nodes near it."""
        original = self._original_value.get(node) or node.outputs[0].name or node.name or ""
        for rule in candidates:
            if rule in self._switched_off:
                continue
            try:
                match = find_match(rule, node, self._facts, exact=self._level < 2)
                if match is None:
                    continue
                is_exact = match.is_exact  # before `apply` removes the inputs of the nodes
                change = apply(match, self._keeps)
            except (Refused, NotKnown):
                continue
            except Mismatch as error:
                self.report.rejected[rule.name] += 1
                logger.info("%s is not applied at %r: %s", rule.label, original, error)
                continue
            except OnnxFoldError:
                raise
            except Exception as error:
                message = f"{rule.label} failed: {type(error).__name__}: {error}"
                name = node.name or node.op_type
                if not rule.is_builtin or not isinstance(error, _INVALID_NODE_ERRORS):
                    raise RuleError(message, node=name) from error
                logger.debug("%s at %r", message, name)  # the invalid node is kept
                self.report.failed_on_invalid[rule.name] += 1
                continue
            self.report.counts[rule.name] += 1
            if not is_exact:
                self.report.inexact[rule.name] += 1
            self.report.places.setdefault(rule.name, []).append(original)
            self._original_value.update(dict.fromkeys(change.added, original))
            self._count(original, rule)
            self._enqueue(change.added)
            self._enqueue_from(change.users)
            for value in change.touched:
                # A rule may match now that the value has only one consumer. Constants are skipped,
                # although the condition `freed_bytes` of a few rules depends on their consumers.
                if len(uses(value)) == 1 and not self._facts.constness.is_constant(value):
                    self._enqueue_from([use.node for use in uses(value)])
            return

    def _count(self, original: str, rule: Rule) -> None:
        """Count a rewrite at a value, and switch off the rules of a loop."""
        history = self._history.setdefault(original, Counter())
        history[rule] += 1
        if history.total() < _MAX_REWRITES_AT_VALUE:
            return
        looping = [rule for rule, count in history.items() if count >= _MIN_REWRITES_IN_LOOP]
        self.report.loops.append(Loop(tuple(r.name for r in looping), original))
        names = ", ".join(r.label for r in looping)
        logger.info("rules that undo each other at %r are switched off: %s", original, names)
        del self._history[original]
        self._switched_off.update(looping)

    def _enqueue_from(self, nodes: Sequence[ir.Node]) -> None:
        """Enqueue nodes, and their direct and indirect consumers, as far as patterns reach.

        If there are too many consumers, all nodes are visited once more at the end instead.
        """
        self._enqueue(nodes)
        for _ in range(self._reach - 2):
            nodes = [use.node for node in nodes for v in node.outputs for use in uses(v)]
            if len(nodes) > _MAX_CONSUMERS:
                self._has_skipped_consumers = True
                return
            self._enqueue(nodes)

    def _enqueue(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            if node not in self._queued and node.graph is not None:
                self._queued.add(node)
                self._queue.append(node)


_Origin = tuple[str, str, bool] | None
"""Op type and domain of the producer of an input, and whether the input is a constant.

Both strings are empty for a value without a producer. None stands for an omitted input.
"""
_Signature = tuple[str, str, tuple[_Origin, ...]]
"""Op type and domain of a node, and the origins of its inputs."""


class _Table:
    """The rules that hold at one set of opsets, by op and by signature, independent of a model."""

    def __init__(self, rules: Iterable[Rule], imports: Iterable[tuple[str, int]]) -> None:
        self._by_op: dict[tuple[str, str], list[tuple[Rule, Op]]] = {}
        self._by_signature: dict[_Signature, tuple[Sequence[Rule], Sequence[Rule]]] = {}
        self.reach = 1
        """The number of ops on the longest path through a pattern."""
        opsets = dict(imports)
        # pairs of a pattern and the number of ops on the path to this pattern
        pending = list[tuple[Expression, int]]()
        for rule in sorted(rules, key=lambda r: -r.benefit):
            if _holds_at(rule, opsets):
                pending.extend(zip(rule.pair.patterns, repeat(0)))
                for op in map(op_of, rule.roots):
                    for op_type in op.op_types:
                        self._by_op.setdefault((op_type, op.domain), []).append((rule, op))
        while pending:
            pattern, ops = pending.pop()
            ops += isinstance(pattern, Op)
            self.reach = max(self.reach, ops)
            pending.extend(zip(pattern.operands, repeat(ops)))
        self.op_types = {op_type for op_type, _ in self._by_op}

    def find(self, signature: _Signature) -> tuple[Sequence[Rule], Sequence[Rule]]:
        """Return the rules that may match a node, and those of them with ``on_constants``.

        Rules with the highest benefit come first.
        """
        if signature not in self._by_signature:
            op_type, domain, origins = signature
            rules_of_op = self._by_op.get((op_type, domain), ())
            rules = dict.fromkeys(
                rule
                for rule, op in rules_of_op
                if all(
                    isinstance(each, Rest) or any(_could_be(each, o) for o in (*origins, None))
                    for each in op.operands
                )
            )
            on_constants = tuple(rule for rule in rules if rule.on_constants)
            self._by_signature[signature] = tuple(rules), on_constants
        return self._by_signature[signature]


# A small cache suffices, because most models have the same few opsets.
_table_of = functools.lru_cache(maxsize=32)(_Table)


def _holds_at(rule: Rule, opsets: Mapping[str, int]) -> bool:
    """Return whether a rule allows the opsets, and these have all ops of the replacement."""
    low, high = rule.opset
    if not low <= opsets.get("", 1) <= (high or math.inf):
        return False
    return unavailable_op(rule.pair.replacements, opsets) is None


def _could_be(pattern: Expression, origin: _Origin) -> bool:
    """Return whether a value of this origin may match a pattern."""
    if pattern is omitted:
        return origin is None
    if isinstance(pattern, any_of):
        return any(_could_be(choice, origin) for choice in pattern.operands)
    if origin is None:
        return False
    op_type, domain, is_constant = origin
    if isinstance(pattern, (Constant, Literal, filled)):
        return is_constant
    return pattern.op is None or (op_type in pattern.op.op_types and domain == pattern.op.domain)
