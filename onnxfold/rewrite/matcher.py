"""The matcher: compares the pattern of a rule with a node and the nodes before it.

What remains to be matched is a linked list of patterns and values. Each alternative, and each order
of operands, continues with a copy of what is bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.content import content_of_attributes
from onnxfold.analysis.facts import ModelFacts, identical
from onnxfold.ir.symbolic import Expr, NotKnown
from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite.conditions import Attribute, Recorded, Term, Unpacked
from onnxfold.rewrite.patterns import (
    AllOutputs,
    Constant,
    Expression,
    Literal,
    Op,
    Rest,
    Values,
    any_of,
    anything,
    filled,
    near,
    omitted,
    result,
)
from onnxfold.rewrite.rule import Rule
from onnxfold.support.forks import cached_property

COMMUTATIVE = frozenset(ops_with(Trait.COMMUTES))
"""ONNX's own ops with two operands in either order."""


@dataclass(eq=False)
class Match:
    """The values, nodes and Python values of attributes of a rule, by symbol."""

    rule: Rule
    facts: ModelFacts
    checks: Mapping[Expression | None, list[Term]]
    slots: _Slots

    def bound(self, thing: object) -> Any:
        """Return the value of a symbol; None if it is omitted or not in the pattern."""
        if thing in self.slots:
            return self.slots[thing]
        return () if type(thing) is Values else None

    def value_of(self, thing: Any) -> Any:
        """Return the value of a term or symbol, of a tuple element by element; anything else as it
        is.

        Raises:
            NotKnown: It depends on an unknown fact or an omitted input.
        """
        if type(thing) in _PLAIN:  # the most frequent
            return thing
        if isinstance(thing, Recorded):
            return thing.evaluate(self)
        if isinstance(thing, (tuple, list)):
            found: list[Any] = []
            for each in thing:
                if isinstance(each, Unpacked):
                    found.extend(self.value_of(each.term))
                else:
                    found.append(self.value_of(each))
            return tuple(found)
        if isinstance(thing, slice):
            return slice(*map(self.value_of, (thing.start, thing.stop, thing.step)))
        return thing

    def number_of(self, thing: Any) -> Any:
        """Return a value that a replacement computes.

        Raises:
            NotKnown: As for `value_of`, or a size is symbolic.
        """
        if isinstance(thing, Attribute):
            return self.bound(thing)
        found = self.value_of(thing)
        if isinstance(thing, Term) and found is None:
            raise NotKnown
        for each in found if isinstance(found, tuple) else (found,):
            if isinstance(each, Expr):
                raise NotKnown
        return found

    def holds(self, condition: Term) -> bool:
        """Return whether a condition is certainly true."""
        try:
            return bool(condition.evaluate(self))
        except NotKnown:
            return False

    @cached_property
    def is_exact(self) -> bool:
        """Whether the rule certainly keeps every bit of the results."""
        inexact = self.rule.inexact
        return not inexact if isinstance(inexact, bool) else self.holds(~inexact)

    @cached_property
    def roots(self) -> Sequence[ir.Value]:
        """The values that are replaced, in the order of the pattern's outputs."""
        first, *others = self.rule.pair.patterns
        all_of = self.slots[first.op].outputs if type(first) is AllOutputs else None
        return all_of or [self.slots[result], *[self.slots[o.op].outputs[o.index] for o in others]]

    @cached_property
    def nodes(self) -> dict[ir.Node, None]:
        """All matched nodes, in the order of the pattern."""
        found = map(self.slots.get, self.rule.symbols)
        # onnx-ir's classes are protocols, for which `isinstance` is slow
        return {each: None for each in found if type(each) is ir.Node}


_Slots = dict[object, Any]
_Pending = tuple[Any, Any, Any] | None
"""A pattern, the value or values that it must match, and what follows; or conditions."""

_PLAIN = frozenset((str, int, float, bool, type(None), ir.DataType))


def find_match(rule: Rule, node: ir.Node, facts: ModelFacts, *, exact: bool) -> Match | None:
    """Match a rule with a node as its first root, so that it keeps every bit if ``exact``."""
    for root, checks in (rule.checks_of_exact if exact else rule.checks).items():
        op = root.op
        outputs = node.outputs
        if op is not None and node.op_type in op.op_types and root.index < len(outputs):
            value = outputs[root.index]
            match = Match(rule, facts, checks, {result: value})
            last = (checks[None], None, None) if None in checks else None
            if _find(match, (root, value, last)):
                return match
    return None


def _find(match: Match, pending: _Pending) -> bool:
    """Match what is pending, and check each condition as soon as what it needs is bound."""
    facts = match.facts
    checks = match.checks
    slots = match.slots
    while pending is not None:
        pattern, value, pending = pending
        if type(pattern) is list:
            if not all(map(match.holds, pattern)):
                return False
            continue
        op = pattern.op
        swap = None
        ways: Iterable[tuple[Sequence[Any], Sequence[Any]]] = ()
        if op is not None:
            node = None if value is None else value.producer()
            if node is None or node.op_type not in op.op_types or node.domain != op.domain:
                return False
            if value.index() != pattern.index:
                return False
            if op in slots:
                if slots[op] is not node:
                    return False
                continue
            if facts.functions and not facts.is_op(node, op.domain):
                return False
            slots[op] = node
            if not _has_attributes(facts, op, node, slots):
                return False
            if op in checks and not all(map(match.holds, checks[op])):
                return False
            swap = None if op.variable is None else op.variable.swap
            ways = zip(repeat(op.operands), _ways(op, node, swap is not None))
        elif type(pattern) is any_of:
            slots[pattern] = value
            pending = (checks[pattern], None, pending) if pattern in checks else pending
            ways = [((choice,), (value,)) for choice in pattern.operands]
        elif _accepts(facts, pattern, value, slots):
            if pattern in checks:
                pending = checks[pattern], None, pending
            continue
        count = 0
        way = pending
        for operands, inputs in ways:  # there are many for an op with thousands of operands
            if count:
                match.slots = slots.copy()
                if _find(match, way):
                    return True
            count, way = count + 1, pending
            for operand, value in zip(operands[::-1], inputs[::-1], strict=True):
                way = operand, value, way
        if not count:
            return False
        match.slots = slots
        pending = way
        if swap is not None:
            slots[swap] = count > 1
    return True


def _accepts(facts: ModelFacts, leaf: Expression, value: Any, slots: _Slots) -> bool:
    """Match a variable, a number, or an omitted input."""
    kind = type(leaf)
    if leaf is omitted:
        return value is None
    if type(leaf) is Rest:
        return bool(slots.setdefault(leaf.variable, value) == value)
    if value is None or (kind in _ACCEPTS and not _ACCEPTS[kind](facts, value, leaf)):
        return False
    if kind is Literal or kind is near or leaf is anything:
        return True
    bound = slots.setdefault(leaf, value)
    return bound is value or facts.same(bound, value)


def _has_attributes(facts: ModelFacts, op: Op, node: ir.Node, slots: _Slots) -> bool:
    """Match the attributes of a node with those of an op."""
    if op.variable is None:
        if node.attributes.data and not facts.has_only_defaults(node, op.attributes):
            return False
    else:
        other = slots.setdefault(op.variable, node)
        if other is not node:
            one, same = (content_of_attributes(n.attributes.data.values()) for n in (node, other))
            if node.op_type != other.op_type or one is None or one != same:
                return False
    for name in op.attributes:
        wanted = op.attributes[name]
        if wanted is anything:
            continue
        value = facts.attribute(node, name)
        if value is None:
            return False
        if type(wanted) is Attribute:
            bound = slots.setdefault(wanted, value)
            if bound is not value and not identical(bound, value):
                return False
        elif not identical(_rounded(value), _rounded(wanted)):
            return False
    return True


def _ways(op: Op, node: ir.Node, either_way: bool) -> Iterable[Sequence[Any]]:
    """Return the inputs of a node for the operands of an op: the two of a commutative op in either
    order, and with variadic variables in every distribution.
    """
    inputs = node.inputs
    count = len(op.operands)
    if True in op.variadic:
        return _shares(inputs, op.variadic)
    if len(inputs) != count:
        if any(v is not None for v in inputs[count:]):
            return ()
        inputs = (*inputs[:count], *[None] * (count - len(inputs)))
    may_commute = either_way or (node.op_type in COMMUTATIVE and not op.domain)
    if count == 2 and may_commute and inputs[0] is not inputs[1]:
        return inputs, inputs[::-1]
    return (inputs,)


def _is_near(facts: ModelFacts, value: ir.Value, leaf: near) -> bool:
    array = facts.constness.array(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fV":
        return False
    found = float(array.reshape(())[()])
    number = leaf.literal
    exact = float(np.asarray(number).astype(array.dtype))
    digits = (float(f"{number:.{count}g}") for count in range(6, 17))
    return any(math.isclose(found, each, rel_tol=2**-23) for each in (exact, *digits))


_ACCEPTS: dict[type, Callable[[ModelFacts, ir.Value, Any], bool | None]] = {
    Constant: lambda facts, value, _: facts.constness.is_constant(value),
    Literal: lambda facts, value, leaf: facts.is_number(value, leaf.literal),
    near: _is_near,
    filled: lambda facts, value, leaf: facts.constness.all_equal(value, leaf.literal),
}
"""The values that numbers and some variables accept; other variables accept any."""


def _shares(inputs: Sequence[Any], variadic: Sequence[bool]) -> Iterator[tuple[Any, ...]]:
    """Yield each distribution of inputs to operands in order; a variadic operand gets a tuple."""
    place = variadic.index(True)
    before = inputs[:place]
    others = variadic[place + 1 :]
    most = len(inputs) - place - others.count(False)
    for size in range(most + 1) if True in others else (most,):
        if size >= 0:
            own = tuple(inputs[place : place + size])
            left = inputs[place + size :]
            for shares in _shares(left, others) if True in others else (left,):
                yield *before, own, *shares


def _rounded(value: Any) -> Any:
    """Return the value of an attribute as stored: 0.1 in a rule is the float32 next to it."""
    return float(np.float32(value)) if type(value) is float else value
