"""The matcher: every pattern becomes a chain of functions, made once a process.

Each function looks at one thing, writes what it finds into a list of slots and calls the next; the
last one asks the rule's condition. The slots hold what the variables and ops of the pattern stand
for, and then the places: the values that operands are matched with. Where something can match in
several ways, each of them goes on with its own copy of the slots.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from onnxfold.analysis.content import content_of_attributes
from onnxfold.rewrite.facts import COMMUTATIVE, MISSING, OPAQUE, Facts, identical
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    AttributeVariable,
    ConstantVariable,
    Expression,
    Filled,
    Literal,
    Near,
    Omitted,
    Op,
    Optional,
    OptionalAttribute,
    OpVariable,
    OutputOf,
    Rest,
    Several,
    ValueVariable,
    Variable,
    VariadicVariable,
    absent,
    anything,
    result,
)
from onnxfold.rewrite.rule import Elsewhere, Rule
from onnxfold.rewrite.terms import compare_values

_Slots = list[Any]
_Step = Callable[[Facts, _Slots], Match | None]
"""Goes on with an attempt that has filled these slots; None if it leads to no match."""

_UNBOUND = object()

_OF_OTHER_CHOICES: dict[type, Any] = {
    **dict.fromkeys((ValueVariable, ConstantVariable, Filled, AttributeVariable)),
    VariadicVariable: (),
}
"""What variables stand for that only other choices of an ``any_of`` have."""


def find_match(rule: Rule, node: ir.Node, facts: Facts) -> Match | None:
    """Match a rule with a node as its first root; None if it does not."""
    return _matcher_of(rule).find(node, facts)


class _Start(NamedTuple):
    """How a node is matched as a first root."""

    op: Op
    output: int
    """Which of its outputs is replaced."""
    slot: int
    """Where the node goes."""
    place: int
    """Where that output goes."""
    match_node: _Step


class _Matcher:
    """One rule as functions."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._bound = list(_bound_by(rule))
        """What has a slot of its own, in order."""
        self._slots = {thing: k for k, thing in enumerate(self._bound)}
        self._blank: _Slots = [_UNBOUND] * len(self._bound)
        self._starts: dict[str, list[_Start]] = {}
        """By op type, what matches a node of that type as a first root."""
        for root in rule.roots:
            start = self._start(root)
            for op_type in start.op.op_types:
                self._starts.setdefault(op_type, []).append(start)

    def find(self, node: ir.Node, facts: Facts) -> Match | None:
        """The first match with the node as first root."""
        for op, output, slot, place, match_node in self._starts.get(node.op_type, ()):
            outputs = node.outputs
            if output < len(outputs) and facts.is_op(node, op.domain):
                slots = self._blank.copy()
                slots[slot] = node
                slots[place] = outputs[output]
                found = match_node(facts, slots)
                if found is not None:
                    return found
        return None

    def _start(self, root: Expression) -> _Start:
        (place,) = self._places(1)
        step = self._accept(place)
        for other in reversed(self._rule.elsewhere):
            step = self._search(other, place, step)
        op = root.op if isinstance(root, (OutputOf, AllOutputs)) else root
        assert isinstance(op, Op)
        output = root.index if isinstance(root, OutputOf) else 0
        return _Start(op, output, self._slots[op], place, self._node(op, step))

    def _accept(self, root: int) -> _Step:
        """The end of an attempt: everything is bound, the condition decides."""
        rule = self._rule
        bound = self._bound
        others = [self._slots[other] for other in rule.elsewhere]
        all_outputs = any(isinstance(root, AllOutputs) for root in rule.roots)
        names, where = rule.names, rule.where

        def accept(facts: Facts, slots: _Slots) -> Match | None:
            bindings: dict[Any, Any] = {
                thing: _OF_OTHER_CHOICES[type(thing)] if found is _UNBOUND else found
                for thing, found in zip(bound, slots, strict=False)
                if found is not _UNBOUND or type(thing) in _OF_OTHER_CHOICES
            }
            roots = [slots[root], *[slots[k] for k in others]]
            bindings[result] = roots[0]
            if all_outputs:
                roots = roots[0].producer().outputs
            match = Match(facts, names, roots, bindings)
            return match if all(each.holds(match) is True for each in where) else None

        return accept

    def _places(self, count: int) -> range:
        """Slots for values that are to be matched."""
        first = len(self._blank)
        self._blank.extend([None] * count)
        return range(first, first + count)

    def _step(self, pattern: Expression, place: int, then: _Step) -> _Step:
        """Match the value at a place and go on."""
        make = _MAKERS.get(type(pattern))
        if make is None:
            raise TypeError(f"{pattern!r} cannot be matched")
        return make(self, pattern, place, then)

    # ---------------------------------------------------------------- values

    def _value(self, variable: ValueVariable | Filled, place: int, then: _Step) -> _Step:
        slot = self._slots[variable]

        def match_value(facts: Facts, slots: _Slots) -> Match | None:
            value = slots[place]
            if value is None:
                return None
            bound = slots[slot]
            if bound is _UNBOUND:
                slots[slot] = value
            elif bound is not value and (bound is None or not facts.same(bound, value)):
                return None
            return then(facts, slots)

        return match_value

    def _constant(self, variable: ConstantVariable, place: int, then: _Step) -> _Step:
        match_value = self._value(variable, place, then)

        def match_constant(facts: Facts, slots: _Slots) -> Match | None:
            value = slots[place]
            if value is None or not facts.known.is_constant(value):
                return None
            return match_value(facts, slots)

        return match_constant

    def _literal(self, literal: Literal, place: int, then: _Step) -> _Step:
        number = literal.number

        def match_number(facts: Facts, slots: _Slots) -> Match | None:
            value = slots[place]
            if value is None or not facts.is_number(value, number):
                return None
            return then(facts, slots)

        return match_number

    def _near(self, near: Near, place: int, then: _Step) -> _Step:
        number = near.number

        def match_near(facts: Facts, slots: _Slots) -> Match | None:
            value = slots[place]
            array = None if value is None else facts.known.array(value)
            if array is None or array.size != 1 or array.dtype.kind not in "fV":
                return None
            if not math.isclose(float(array.reshape(())[()]), number, rel_tol=1e-3):
                return None
            return then(facts, slots)

        return match_near

    def _filled(self, filled: Filled, place: int, then: _Step) -> _Step:
        number = filled.number
        match_value = self._value(filled, place, then)

        def match_filled(facts: Facts, slots: _Slots) -> Match | None:
            value = slots[place]
            if value is None or not facts.known.all_equal(value, number):
                return None
            return match_value(facts, slots)

        return match_filled

    def _omitted(self, omitted: Omitted, place: int, then: _Step) -> _Step:
        def match_omitted(facts: Facts, slots: _Slots) -> Match | None:
            return then(facts, slots) if slots[place] is None else None

        return match_omitted

    def _optional(self, optional: Optional, place: int, then: _Step) -> _Step:
        match_inner = self._step(optional.inner, place, then)
        inside = [self._slots[e] for e in optional.inner.walk() if isinstance(e, Variable)]

        def match_optional(facts: Facts, slots: _Slots) -> Match | None:
            if slots[place] is not None:
                return match_inner(facts, slots)
            for slot in inside:
                if slots[slot] is _UNBOUND:
                    slots[slot] = None
                elif slots[slot] is not None:
                    return None
            return then(facts, slots)

        return match_optional

    def _rest(self, rest: Rest, place: int, then: _Step) -> _Step:
        slot = self._slots[rest.variable]
        constant = rest.variable.constant

        def match_rest(facts: Facts, slots: _Slots) -> Match | None:
            values = slots[place]
            if constant and not all(v is not None and facts.known.is_constant(v) for v in values):
                return None
            if slots[slot] is _UNBOUND:
                slots[slot] = values
            elif slots[slot] != values:
                return None
            return then(facts, slots)

        return match_rest

    def _all_outputs(self, outputs: AllOutputs, place: int, then: _Step) -> _Step:
        (first,) = self._places(1)
        match_op = self._op(outputs.op, first, then)

        def match_outputs(facts: Facts, slots: _Slots) -> Match | None:
            values = slots[place]
            node = values[0].producer() if values and values[0] is not None else None
            if node is None or values != tuple(node.outputs):
                return None
            slots[first] = values[0]
            return match_op(facts, slots)

        return match_outputs

    def _any_of(self, any_of: AnyOf, place: int, then: _Step) -> _Step:
        return _first_of([self._step(choice, place, then) for choice in any_of.choices])

    # ---------------------------------------------------------------- ops

    def _output(self, output: OutputOf, place: int, then: _Step) -> _Step:
        return self._op(output.op, place, then, output.index)

    def _op(self, op: Op, place: int, then: _Step, index: int = 0) -> _Step:
        slot, domain, op_types = self._slots[op], op.domain, op.op_types
        match_node = self._node(op, then)

        def match_op(facts: Facts, slots: _Slots) -> Match | None:
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
        has_rest = any(isinstance(operand, Several) for operand in op.operands)
        match_inputs = self._spread if has_rest else self._inputs
        return self._attributes(op, slot, match_inputs(op, slot, then))

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

        def match_inputs(facts: Facts, slots: _Slots) -> Match | None:
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
        """Match a node's inputs in every way to give the variadic variables their share."""
        places = self._places(len(op.operands))
        first, end = places.start, places.stop
        match_operands = self._all(op.operands, places, then)
        variadic = tuple(isinstance(operand, Several) for operand in op.operands)

        def match_inputs(facts: Facts, slots: _Slots) -> Match | None:
            for shares in _shares(slots[slot].inputs, variadic):
                way = slots.copy()
                way[first:end] = shares
                found = match_operands(facts, way)
                if found is not None:
                    return found
            return None

        return match_inputs

    def _all(self, operands: Sequence[Expression], places: Sequence[int], then: _Step) -> _Step:
        """Match each operand at its place: what rules out the most comes first."""
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
        if op.variable is not None:
            return self._same_op(op.variable, slot, then)
        mentioned = op.attributes

        def match_attributes(facts: Facts, slots: _Slots) -> Match | None:
            node = slots[slot]
            if node.attributes.data and not facts.has_only_defaults(node, mentioned):
                return None
            return then(facts, slots)

        return match_attributes

    def _same_op(self, variable: OpVariable, slot: int, then: _Step) -> _Step:
        own = self._slots[variable]

        def match_same_op(facts: Facts, slots: _Slots) -> Match | None:
            node, bound = slots[slot], slots[own]
            if bound is _UNBOUND:
                slots[own] = node
            elif bound is not node and not _are_same_op(bound, node):
                return None
            return then(facts, slots)

        return match_same_op

    def _attribute(self, name: str, wanted: Any, slot: int, then: _Step) -> _Step:
        optional = isinstance(wanted, OptionalAttribute)
        variable = wanted.variable if isinstance(wanted, OptionalAttribute) else wanted
        own = self._slots[variable] if isinstance(variable, AttributeVariable) else None

        def match_absent(facts: Facts, slots: _Slots) -> Match | None:
            return None if name in slots[slot].attributes else then(facts, slots)

        def match_attribute(facts: Facts, slots: _Slots) -> Match | None:
            value = facts.attribute(slots[slot], name)
            if optional and value is MISSING:
                value = None
            if value is OPAQUE or value is MISSING:
                return None
            if own is None:
                if compare_values(operator.eq, value, wanted) is not True:
                    return None
            elif slots[own] is _UNBOUND:
                slots[own] = value
            elif not identical(slots[own], value):
                return None
            return then(facts, slots)

        return match_absent if wanted is absent else match_attribute

    # ---------------------------------------------------------------- further roots

    def _search(self, other: Elsewhere, first: int, then: _Step) -> _Step:
        """Find a root among the users of what is bound already, in the graph of the first one."""
        (place,) = self._places(1)
        slot = self._slots[other]
        match_root = self._step(other.pattern, place, then)
        op, index = other.op, other.index
        bound_op = self._slots[op]
        paths = [(self._slots[start], above[:-1]) for start, above in other.paths]
        ops = [self._slots[thing] for thing in self._bound if isinstance(thing, (Op, OpVariable))]

        def candidates(slots: _Slots) -> list[ir.Node]:
            if slots[bound_op] is not _UNBOUND:
                return [slots[bound_op]]
            for start, above in paths:
                bound = slots[start]
                if bound is _UNBOUND or bound is None:
                    continue
                nodes = _users([bound] if isinstance(bound, ir.Value) else bound.outputs)
                for between in above:
                    nodes = [
                        user
                        for node in nodes
                        if node.op_type in between.op_types
                        for user in _users(node.outputs)
                    ]
                taken = {id(slots[k]) for k in ops}
                return [node for node in nodes if id(node) not in taken]
            return []

        def search(facts: Facts, slots: _Slots) -> Match | None:
            graph = slots[first].producer().graph
            for node in candidates(slots):
                if index < len(node.outputs) and node.graph is graph:
                    way = slots.copy()
                    way[place] = way[slot] = node.outputs[index]
                    found = match_root(facts, way)
                    if found is not None:
                        return found
            return None

        return search


_MAKERS: dict[type[Expression], Callable[..., _Step]] = {
    ValueVariable: _Matcher._value,
    ConstantVariable: _Matcher._constant,
    Literal: _Matcher._literal,
    Near: _Matcher._near,
    Filled: _Matcher._filled,
    Omitted: _Matcher._omitted,
    Optional: _Matcher._optional,
    Rest: _Matcher._rest,
    AllOutputs: _Matcher._all_outputs,
    AnyOf: _Matcher._any_of,
    Op: _Matcher._op,
    OutputOf: _Matcher._output,
}
"""What makes the function that matches an expression of each kind."""

_matcher_of = functools.lru_cache(maxsize=1 << 14)(_Matcher)


def _bound_by(rule: Rule) -> dict[object, None]:
    """What a pattern binds: variables, ops, op variables, attribute variables, further roots."""
    bound: dict[object, None] = {}
    for pattern in rule.pair.patterns:
        for expression in pattern.walk():
            if isinstance(expression, (Variable, Op)):
                bound[expression] = None
            if isinstance(expression, Op):
                if expression.variable is not None:
                    bound[expression.variable] = None
                    if expression.variable.swap is not None:
                        bound[expression.variable.swap] = None
                for wanted in expression.attributes.values():
                    thing = wanted.variable if isinstance(wanted, OptionalAttribute) else wanted
                    if isinstance(thing, AttributeVariable):
                        bound[thing] = None
    bound.update(dict.fromkeys(rule.elsewhere))
    return bound


def _first_of(steps: Sequence[_Step]) -> _Step:
    def match_first(facts: Facts, slots: _Slots) -> Match | None:
        for step in steps:
            found = step(facts, slots.copy())
            if found is not None:
                return found
        return None

    return match_first


def _shares(inputs: Sequence[Any], variadic: Sequence[bool]) -> Iterator[tuple[Any, ...]]:
    """Every way to give operands the inputs in order: one each, a tuple to a variadic one."""
    if not variadic:
        if not inputs:
            yield ()
        return
    is_variadic, others = variadic[0], variadic[1:]
    most = len(inputs) - others.count(False)
    if not is_variadic:
        if most > 0:
            for shares in _shares(inputs[1:], others):
                yield inputs[0], *shares
        return
    if True not in others:
        if most >= 0:
            yield tuple(inputs[:most]), *inputs[most:]
        return
    for size in range(most + 1):
        for shares in _shares(inputs[size:], others):
            yield tuple(inputs[:size]), *shares


def _users(values: Sequence[ir.Value]) -> list[ir.Node]:
    return list({use.node: None for value in values for use in value.uses()})


def _are_same_op(one: ir.Node, other: ir.Node) -> bool:
    if one.op_type != other.op_type:
        return False
    contents = [content_of_attributes(n.attributes.data.values()) for n in (one, other)]
    return contents[0] is not None and contents[0] == contents[1]
