"""The matcher: a chain of functions for each pattern, made once a process.

Each function tests one property, stores what it binds in a list of slots, and calls the next; the
last one evaluates the remaining conditions. The slots hold the values of the variables and ops of
the pattern, followed by the values that operands are matched with. Alternatives continue with
copies of the slots.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.content import content_of_attributes
from onnxfold.analysis.facts import ModelFacts, identical
from onnxfold.analysis.symbolic import Expr, NotKnown
from onnxfold.ops import Trait, ops
from onnxfold.rewrite.conditions import Attribute, Recorded, Term, Unpacked, symbols_of
from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    Constant,
    Expression,
    Filled,
    Literal,
    Near,
    Omitted,
    Op,
    OutputOf,
    Rest,
    Values,
    ValueVariable,
    anything,
    op_of,
    result,
)
from onnxfold.rewrite.rule import Rule, attribute_variables, walk

COMMUTATIVE = frozenset(ops(Trait.COMMUTES))
"""ONNX's own ops with two operands in either order."""


class Match:
    """The values of the symbols of a rule.

    Args:
        rule: The rule.
        facts: What is known of the model.
        slots: What is bound: values, nodes, Python values of attributes.
        roots: The values that are replaced, in the order of the pattern's outputs; none while the
            pattern is being matched.
    """

    def __init__(
        self, rule: Rule, facts: ModelFacts, slots: Sequence[Any], roots: Sequence[ir.Value] = ()
    ) -> None:
        self.rule = rule
        self.facts = facts
        self.roots = roots
        self._slots = slots

    def bound(self, thing: object) -> Any:
        """Return the value of a symbol; None if it is omitted or not in the pattern."""
        slots = self.rule.slots
        content = self._slots[slots[thing]] if thing in slots else None
        return None if content is _UNBOUND else content

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

    @functools.cached_property
    def is_exact(self) -> bool:
        """Whether the rule certainly keeps every bit of the results."""
        inexact = self.rule.inexact
        return not inexact if isinstance(inexact, bool) else self.holds(~inexact)

    @functools.cached_property
    def nodes(self) -> dict[ir.Node, None]:
        """All matched nodes."""
        # onnx-ir's classes are protocols, for which `isinstance` is slow
        return {found: None for found in self._slots if type(found) is ir.Node}


_Slots = list[Any]
_Step = Callable[[ModelFacts, _Slots], Match | None]
"""Continue an attempt with these slots; return None if there is no match."""

_UNBOUND = object()
_PLAIN = frozenset((str, int, float, bool, type(None), ir.DataType))


def find_match(rule: Rule, node: ir.Node, facts: ModelFacts) -> Match | None:
    """Match a rule with a node as its first root; None if it does not."""
    return _matcher_of(rule).find(node, facts)


class _Matcher:
    """One rule as functions."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._slots = rule.slots
        self._blank: _Slots = [_UNBOUND] * len(rule.slots)
        self._starts: dict[str, list[tuple[int, int, _Step]]] = {}
        """By op type: which output is the root, its place, and what matches it."""
        for root in rule.roots:
            (place,) = self._places(1)
            self._schedule(root)
            start = _index_of(root), place, self._op(root, place, self._accept(place))
            for op_type in op_of(root).op_types:
                self._starts.setdefault(op_type, []).append(start)

    def find(self, node: ir.Node, facts: ModelFacts) -> Match | None:
        """Return the first match with the node as first root."""
        outputs = node.outputs
        for output, place, match_root in self._starts.get(node.op_type, ()):
            if output < len(outputs):
                slots = self._blank.copy()
                slots[0] = slots[place] = outputs[output]
                found = match_root(facts, slots)
                if found is not None:
                    return found
        return None

    def _accept(self, root: int) -> _Step:
        """Return the end of an attempt: everything is bound."""
        rule, conditions = self._rule, self._conditions.get(None, ())
        count = len(rule.slots)
        others = [(self._slots[op_of(p)], _index_of(p)) for p in rule.pair.patterns[1:]]
        all_outputs = any(isinstance(root, AllOutputs) for root in rule.roots)
        # of the alternatives that were not taken
        variadic = {k for thing, k in rule.slots.items() if isinstance(thing, Values)}
        may_be_open = any(isinstance(e, AnyOf) for e in walk(rule.pair.patterns))

        def accept(facts: ModelFacts, slots: _Slots) -> Match | None:
            bound = slots[:count]
            first = slots[root]
            if may_be_open:
                for k in range(count):
                    if bound[k] is _UNBOUND:
                        bound[k] = () if k in variadic else None
            roots = [first, *[slots[k].outputs[index] for k, index in others]]
            if all_outputs:
                roots = first.producer().outputs
            match = Match(rule, facts, bound, roots)
            return match if all(map(match.holds, conditions)) else None

        return accept

    def _schedule(self, root: Expression) -> None:
        """Assign each condition to the last symbol that it needs."""
        optional = [e for e in root.walk() if isinstance(e, AnyOf)]
        skipped = {e for each in optional for e in each.walk()}
        bound: dict[object, tuple[int, Expression]] = {}
        pending = [root]
        while pending:
            expression = pending.pop()
            if isinstance(expression, (OutputOf, AllOutputs)):
                expression = expression.op
            if expression not in skipped:
                place = bound.setdefault(expression, (len(bound), expression))
                if isinstance(expression, Op):
                    for variable in attribute_variables(expression):
                        bound.setdefault(variable, place)
                    pending.extend(sorted(expression.operands, key=lambda o: o.weight)[::-1])
        self._conditions: dict[object, list[Term]] = {}
        """The conditions by the last symbol they need; None if they depend on alternatives."""
        for condition in self._rule.conditions:
            needed = set(symbols_of(condition)) - {result}
            places = [bound[symbol] for symbol in needed if symbol in bound]
            last = (
                max(places, key=operator.itemgetter(0))[1]
                if len(places) == len(needed) > 0
                else None
            )
            self._conditions.setdefault(last, []).append(condition)

    def _checked(self, symbol: object, then: _Step) -> _Step:
        """Evaluate the conditions that can be evaluated once a symbol is bound, and go on."""
        conditions, rule = self._conditions.get(symbol), self._rule
        if conditions is None:
            return then

        def check(facts: ModelFacts, slots: _Slots) -> Match | None:
            match = Match(rule, facts, slots)
            return then(facts, slots) if all(map(match.holds, conditions)) else None

        return check

    def _places(self, count: int) -> range:
        """Allocate slots for values to match."""
        first = len(self._blank)
        self._blank.extend([None] * count)
        return range(first, first + count)

    def _step(self, pattern: Expression, place: int, then: _Step) -> _Step:
        """Match the value at a place and go on."""
        return _MAKERS[type(pattern)](self, pattern, place, then)

    # ---------------------------------------------------------------- values

    def _leaf(self, leaf: Expression, place: int, then: _Step) -> _Step:
        """Match a variable or a number."""
        slot = self._slots.get(leaf)
        number = leaf.literal if isinstance(leaf, (Literal, Filled)) else 0.0
        accepts = _ACCEPTS.get(type(leaf))
        then = self._checked(leaf, then)

        def match_leaf(facts: ModelFacts, slots: _Slots) -> Match | None:
            value = slots[place]
            if value is None or (accepts is not None and not accepts(facts, value, number)):
                return None
            if slot is not None:
                bound = slots[slot]
                if bound is _UNBOUND:
                    slots[slot] = value
                elif bound is not value and (bound is None or not facts.same(bound, value)):
                    return None
            return then(facts, slots)

        return match_leaf

    def _omitted(self, omitted: Omitted, place: int, then: _Step) -> _Step:
        def match_omitted(facts: ModelFacts, slots: _Slots) -> Match | None:
            return then(facts, slots) if slots[place] is None else None

        return match_omitted

    def _rest(self, rest: Rest, place: int, then: _Step) -> _Step:
        slot = self._slots[rest.variable]

        def match_rest(facts: ModelFacts, slots: _Slots) -> Match | None:
            values = slots[place]
            if slots[slot] is _UNBOUND:
                slots[slot] = values
            elif slots[slot] != values:
                return None
            return then(facts, slots)

        return match_rest

    def _any_of(self, any_of: AnyOf, place: int, then: _Step) -> _Step:
        steps = [self._step(choice, place, then) for choice in any_of.operands]
        slot = self._slots[any_of]

        def match_first(facts: ModelFacts, slots: _Slots) -> Match | None:
            slots[slot] = slots[place]
            found = (step(facts, slots.copy()) for step in steps)
            return next((match for match in found if match is not None), None)

        return match_first

    # ---------------------------------------------------------------- ops

    def _op(self, pattern: Expression, place: int, then: _Step) -> _Step:
        op, index = op_of(pattern), _index_of(pattern)
        slot, domain, op_types = self._slots[op], op.domain, op.op_types
        match_node = self._node(op, then)

        def match_op(facts: ModelFacts, slots: _Slots) -> Match | None:
            value = slots[place]
            node = None if value is None else value.producer()
            if node is None or node.op_type not in op_types or value.index() != index:
                return None
            bound = slots[slot]
            if bound is not _UNBOUND:
                return then(facts, slots) if bound is node else None
            if not facts.is_op(node, domain):
                return None
            slots[slot] = node
            return match_node(facts, slots)

        return match_op

    def _node(self, op: Op, then: _Step) -> _Step:
        """Match the attributes and the inputs of the node that an op's slot holds."""
        slot = self._slots[op]
        has_rest = any(isinstance(operand, Rest) for operand in op.operands)
        match_inputs = self._spread if has_rest else self._inputs
        match_operands = match_inputs(op, slot, then)
        return self._attributes(op, slot, self._checked(op, match_operands))

    def _inputs(self, op: Op, slot: int, then: _Step) -> _Step:
        """Match a node's inputs one by one; the two of a commutative op in either order."""
        count = len(op.operands)
        places = self._places(count)
        first = places.start
        match_operands = self._all(op.operands, places, then)
        swap = None if op.variable is None else op.variable.swap
        swapped = -1 if swap is None else self._slots[swap]
        commuting = op.op_types if swap is not None else COMMUTATIVE.intersection(op.op_types)
        may_commute = count == 2 and bool(commuting) and (op.domain == "" or swap is not None)

        def match_inputs(facts: ModelFacts, slots: _Slots) -> Match | None:
            node = slots[slot]
            inputs = node.inputs
            given = len(inputs)
            if given != count:
                if any(v is not None for v in inputs[count:]):
                    return None
                inputs = (*inputs[:count], *[None] * (count - given))
            if may_commute and inputs[0] is not inputs[1] and node.op_type in commuting:
                crossed = slots.copy()
                if swap is not None:
                    slots[swapped], crossed[swapped] = False, True
                crossed[first : first + 2] = inputs[1], inputs[0]
                slots[first : first + 2] = inputs
                return match_operands(facts, slots) or match_operands(facts, crossed)
            slots[first : first + count] = inputs
            return match_operands(facts, slots)

        return match_inputs

    def _spread(self, op: Op, slot: int, then: _Step) -> _Step:
        """Match a node's inputs, for every distribution of them to the variadic variables."""
        places = self._places(len(op.operands))
        first, end = places.start, places.stop
        match_operands = self._all(op.operands, places, then)
        variadic = tuple(isinstance(operand, Rest) for operand in op.operands)

        def match_inputs(facts: ModelFacts, slots: _Slots) -> Match | None:
            for shares in _shares(slots[slot].inputs, variadic):
                way = slots.copy()
                way[first:end] = shares
                found = match_operands(facts, way)
                if found is not None:
                    return found
            return None

        return match_inputs

    def _all(self, operands: Sequence[Expression], places: Sequence[int], then: _Step) -> _Step:
        """Match each operand at its place, the most selective first."""
        order = sorted(range(len(operands)), key=lambda k: operands[k].weight)
        for k in reversed(order):
            then = self._step(operands[k], places[k], then)
        return then

    # ---------------------------------------------------------------- attributes

    def _attributes(self, op: Op, slot: int, then: _Step) -> _Step:
        """Match a node's attributes and go on."""
        for name, wanted in reversed(op.attributes.items()):
            if wanted is not anything:
                then = self._attribute(name, wanted, slot, then)
        mentioned = op.attributes
        own = None if op.variable is None else self._slots[op.variable]

        def match_attributes(facts: ModelFacts, slots: _Slots) -> Match | None:
            node = slots[slot]
            if own is None:
                if node.attributes.data and not facts.has_only_defaults(node, mentioned):
                    return None
            elif slots[own] is _UNBOUND:
                slots[own] = node
            elif slots[own] is not node and not _are_same_op(slots[own], node):
                return None
            return then(facts, slots)

        return match_attributes

    def _attribute(self, name: str, wanted: Any, slot: int, then: _Step) -> _Step:
        own = self._slots[wanted] if isinstance(wanted, Attribute) else None
        literal = _rounded(wanted)

        def match_attribute(facts: ModelFacts, slots: _Slots) -> Match | None:
            value = facts.attribute(slots[slot], name)
            if value is None:
                return None
            if own is None:
                if not identical(_rounded(value), literal):
                    return None
            elif slots[own] is _UNBOUND:
                slots[own] = value
            elif not identical(slots[own], value):
                return None
            return then(facts, slots)

        return match_attribute


_MAKERS: dict[type[Expression], Callable[..., _Step]] = {
    **dict.fromkeys((ValueVariable, Constant, Literal, Near, Filled), _Matcher._leaf),
    Omitted: _Matcher._omitted,
    Rest: _Matcher._rest,
    AnyOf: _Matcher._any_of,
    Op: _Matcher._op,
    OutputOf: _Matcher._op,
}
"""The methods that make the matching functions, by kind of expression."""


def _is_near(facts: ModelFacts, value: ir.Value, number: float) -> bool:
    array = facts.known.array(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fV":
        return False
    found = float(array.reshape(())[()])
    exact = float(np.asarray(number).astype(array.dtype))
    digits = (float(f"{number:.{count}g}") for count in range(6, 17))
    return any(math.isclose(found, each, rel_tol=2**-23) for each in (exact, *digits))


_ACCEPTS: dict[type, Callable[[ModelFacts, ir.Value, float], bool | None]] = {
    Constant: lambda facts, value, _: facts.known.is_constant(value),
    Literal: lambda facts, value, number: facts.is_number(value, number),
    Near: _is_near,
    Filled: lambda facts, value, number: facts.known.all_equal(value, number),
}
"""The values that numbers and some variables accept; other variables accept any."""

_matcher_of = functools.lru_cache(maxsize=1 << 14)(_Matcher)


def _index_of(root: Expression) -> int:
    return root.index if isinstance(root, OutputOf) else 0


def _shares(inputs: Sequence[Any], variadic: Sequence[bool]) -> Iterator[tuple[Any, ...]]:
    """Yield each distribution of inputs to operands in order; a variadic operand gets a tuple."""
    place = variadic.index(True)
    before, others = inputs[:place], variadic[place + 1 :]
    most = len(inputs) - place - others.count(False)
    for size in range(most + 1) if True in others else (most,):
        if size >= 0:
            own, left = tuple(inputs[place : place + size]), inputs[place + size :]
            for shares in _shares(left, others) if True in others else (left,):
                yield *before, own, *shares


def _rounded(value: Any) -> Any:
    """Return the value of an attribute as stored: 0.1 in a rule is the float32 next to it."""
    return float(np.float32(value)) if type(value) is float else value


def _are_same_op(one: ir.Node, other: ir.Node) -> bool:
    if one.op_type != other.op_type:
        return False
    contents = [content_of_attributes(n.attributes.data.values()) for n in (one, other)]
    return contents[0] is not None and contents[0] == contents[1]
