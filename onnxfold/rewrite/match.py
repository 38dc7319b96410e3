"""The matcher: a pattern against a node, with backtracking over what can match in several ways."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.analysis.content import content_of_attributes
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite.facts import COMMUTATIVE, MISSING, OPAQUE, Facts
from onnxfold.rewrite.patterns import (
    Alternatives,
    AttributeVariable,
    Expression,
    Op,
    OptionalAttribute,
    OpVariable,
    OutputOf,
    Result,
    absent,
    anything,
)
from onnxfold.rewrite.terms import compare_values, identical

if TYPE_CHECKING:
    from onnxfold.rewrite.rule import Rule

Bindings = dict[Any, Any]
"""Variables to values, attribute variables to Python values, ops and op variables to nodes."""

# A list of goals that shares its tail with others: (first, rest).
_Goals = tuple[tuple[Any, Any], Any] | None


class Match:
    """A rule that has matched, as conditions and lifted functions see it."""

    def __init__(
        self, facts: Facts, rule: Rule, roots: Sequence[ir.Value], found: Bindings
    ) -> None:
        self.facts = facts
        self.rule = rule
        self.roots = roots
        """The values that are replaced, in the order of the pattern's outputs."""
        self.bindings = found

    def __getitem__(self, thing: Any) -> Any:
        """What a variable stands for: a value (None if omitted), values, an attribute, a node.

        ``result`` is the first value that is replaced; an op of the pattern is its output.
        """
        if isinstance(thing, Result):
            return self.roots[0]
        found = self.bindings[thing.op if isinstance(thing, OutputOf) else thing]
        if isinstance(thing, OutputOf):
            return found.outputs[thing.index]
        if isinstance(thing, Op):
            return found.outputs[0]
        return found

    def node(self, thing: Op | OpVariable) -> ir.Node:
        """The node that an op of the pattern matched."""
        node: ir.Node = self.bindings[thing]
        return node

    def attribute(self, thing: Op | OpVariable, name: str) -> Any:
        """An attribute of a matched node, its default if not written, None if there is none."""
        value = self.facts.attribute(self.bindings[thing], name)
        return None if value is MISSING or value is OPAQUE else value

    def dtype(self, x: Any) -> ir.DataType | None:
        """The dtype of a matched value; None if unknown."""
        return self.facts.types.of(self._value(x)).dtype

    def shape(self, x: Any) -> Shape | None:
        """The shape of a matched value: int and symbols; None if not even the rank is known."""
        return self.facts.types.of(self._value(x)).shape

    def static_shape(self, x: Any) -> tuple[int, ...] | None:
        """The shape if every size is a number."""
        return self.facts.types.of(self._value(x)).static_shape

    def rank(self, x: Any) -> int | None:
        """The number of axes."""
        return self.facts.types.of(self._value(x)).rank

    def array(self, c: Any) -> Any:
        """The elements of a small constant, read-only; None for any other value."""
        return self.facts.known.array(self._value(c))

    @property
    def opset(self) -> int:
        """The version of ONNX's own ops where the match is."""
        scope = self.facts.scopes.find(self.roots[0].graph)
        return 0 if scope is None else scope.opsets.get("", 0)

    def _value(self, x: Any) -> ir.Value:
        value: ir.Value = x if isinstance(x, ir.Value) else self[x]
        return value


class Matching:
    """One attempt: what patterns ask while they match."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.same = facts.same
        self.is_op = facts.is_op
        self.is_number = facts.is_number

    def is_commutative(self, node: ir.Node) -> bool:
        """True for an op that gives the same for two operands in either order."""
        return node.op_type in COMMUTATIVE and node.domain == ""

    def bind_op(self, pattern: Op, node: ir.Node, bindings: Bindings) -> bool:
        """Match the attributes of a node and bind the attribute and op variables."""
        variable = pattern.variable
        if variable is not None:
            bound = bindings.setdefault(variable, node)
            if bound is not node and not _same_op(bound, node):
                return False
        elif node.attributes and not self.facts.has_only_defaults(node, pattern.attributes):
            return False
        return all(
            self._match_attribute(node, name, wanted, bindings)
            for name, wanted in pattern.attributes.items()
        )

    def _match_attribute(self, node: ir.Node, name: str, wanted: Any, bindings: Bindings) -> bool:
        if wanted is anything:
            return True
        if wanted is absent:
            return name not in node.attributes
        value = self.facts.attribute(node, name)
        if value is OPAQUE:
            return False
        if isinstance(wanted, OptionalAttribute):
            wanted = wanted.variable
            value = None if value is MISSING else value
        if value is MISSING:
            return False
        if isinstance(wanted, AttributeVariable):
            return identical(bindings.setdefault(wanted, value), value)
        return compare_values(operator.eq, value, wanted) is True


def find_match(rule: Rule, node: ir.Node, facts: Facts) -> Match | None:
    """Match a rule with a node as its first root; None if it does not."""
    matching = Matching(facts)
    for root in rule.roots:
        pattern = root.op if isinstance(root, OutputOf) else root
        index = root.index if isinstance(root, OutputOf) else 0
        assert isinstance(pattern, Op)
        if index >= len(node.outputs):
            continue
        bindings: Bindings = {}
        ways = pattern.expand_node(node, bindings, matching)
        goals: _Goals = None
        for other in reversed(rule.elsewhere):
            goals = ((other, None), goals)
        found = _choose(ways, goals, bindings, _Attempt(rule, root, node.outputs[index], matching))
        if found is not None:
            return found
    return None


class _Attempt:
    """The end of an attempt: everything is bound, the conditions decide."""

    def __init__(self, rule: Rule, root: Expression, value: ir.Value, matching: Matching) -> None:
        self._rule = rule
        self._value = value
        self.matching = matching

    def accept(self, bindings: Bindings) -> Match | None:
        roots = [self._value, *(bindings[e] for e in self._rule.elsewhere)]
        match = Match(self.matching.facts, self._rule, roots, bindings)
        where = self._rule.where
        return match if where is None or where.holds(match) is True else None


def _solve(goals: _Goals, bindings: Bindings, attempt: _Attempt) -> Match | None:
    while goals is not None:
        (pattern, value), goals = goals
        ways = pattern.expand(value, bindings, attempt.matching)
        if len(ways) != 1:
            return _choose(ways, goals, bindings, attempt)
        for goal in reversed(ways[0]):
            goals = (goal, goals)
    return attempt.accept(bindings)


def _choose(
    ways: Alternatives, goals: _Goals, bindings: Bindings, attempt: _Attempt
) -> Match | None:
    for way in ways:
        remaining = goals
        for goal in reversed(way):
            remaining = (goal, remaining)
        found = _solve(remaining, dict(bindings), attempt)
        if found is not None:
            return found
    return None


def _same_op(one: ir.Node, other: ir.Node) -> bool:
    if one.op_type != other.op_type:
        return False
    contents = [content_of_attributes(node.attributes.values()) for node in (one, other)]
    return contents[0] is not None and contents[0] == contents[1]
