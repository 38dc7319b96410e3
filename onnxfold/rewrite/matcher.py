"""The matcher: compares the pattern of a rule with a node and its producers.

The matcher is a depth-first search with backtracking. Its goals are operands to match and
conditions to check. `Pending` is the stack of remaining goals, and `Match.bindings` has the
values of the symbols that are bound. The inputs of a node may match in several orders, and a
pattern may have alternatives. `try_alternatives` then starts each alternative with another copy of
the bindings. All alternatives share the remaining goals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

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
"""The types of the commutative ops of ONNX."""


_Bindings = dict[object, Any]


@dataclass(eq=False)
class Match:
    """A match of a rule, during and after the search, with the bindings of the rule's symbols."""

    rule: Rule
    facts: ModelFacts
    checks: Mapping[Expression | None, list[Term]]
    """The conditions by the expression after which they are checked."""
    bindings: _Bindings
    """The content of each bound symbol.

    A variable has a value, and an op or op variable has a node. A variadic variable has a tuple of
    values, and an attribute has a Python value. An `any_of` has None if the input is omitted. The
    symbol ``swap`` of an op variable has a bool.
    """

    def bound(self, symbol: object) -> Any:
        """Return the content of a symbol, see ``bindings``.

        If the symbol is omitted or not in the pattern, the result is (), for a variadic variable,
        or None.
        """
        if symbol in self.bindings:
            return self.bindings[symbol]
        return () if type(symbol) is Values else None

    def value_of(self, term: Any) -> Any:
        """Return the value of a term, a symbol, or a tuple, list or slice with terms.

        Lists become tuples. Other values are returned unchanged.

        Raises:
            NotKnown: The value depends on an unknown fact or an omitted input.
        """
        if type(term) in _PLAIN_TYPES:  # the most frequent case
            return term
        if isinstance(term, Recorded):
            return term.evaluate(self)
        if isinstance(term, (tuple, list)):
            elements: list[Any] = []
            for each in term:
                if isinstance(each, Unpacked):
                    elements.extend(self.value_of(each.term))
                else:
                    elements.append(self.value_of(each))
            return tuple(elements)
        if isinstance(term, slice):
            return slice(*map(self.value_of, (term.start, term.stop, term.step)))
        return term

    def number_of(self, term: Any) -> Any:
        """Return the value of a term in a replacement.

        An attribute is returned as it is in the node, or as None if it is omitted.

        Raises:
            NotKnown: As for `value_of`, or the value is or contains a symbolic size.
        """
        if isinstance(term, Attribute):
            return self.bound(term)
        value = self.value_of(term)
        if isinstance(term, Term) and value is None:
            raise NotKnown("{} is not known", term)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Expr):
                raise NotKnown("a size in {} is symbolic", term)
        return value

    def holds(self, condition: Term) -> bool:
        """Return whether a condition is certainly true."""
        try:
            return bool(condition.evaluate(self))
        except NotKnown:
            return False

    def accepts_op(self, pattern: Expression, value: ir.Value | None) -> bool:
        """Match an op with the producer of a value, and bind the symbols of the op.

        The op type, the index of the output and the attributes are compared, but not the operands.

        Args:
            pattern: The op, or one of its outputs.
            value: The value, or None for an omitted input.

        Returns:
            Whether the op matches. If not, some symbols may be bound nevertheless.
        """
        op = pattern.op
        node = None if value is None else value.producer()
        if op is None or value is None or node is None:
            return False
        if node.op_type not in op.op_types or node.domain != op.domain:
            return False
        if value.index() != pattern.index:
            return False
        if op in self.bindings:
            return self.bindings[op] is node
        facts = self.facts
        if facts.functions and not facts.is_op(node, op.domain):
            return False
        self.bindings[op] = node
        return _has_attributes(facts, op, node, self.bindings)

    def accepts_leaf(self, leaf: Expression, value: Any) -> bool:
        """Match a variable, a number, or an omitted input with a value, and bind the variable.

        ``value`` is None for an omitted input, and a tuple for a variadic variable. Returns whether
        the leaf matches.
        """
        kind = type(leaf)
        if leaf is omitted:
            return value is None
        if type(leaf) is Rest:
            return bool(self.bindings.setdefault(leaf.variable, value) == value)
        if value is None or (kind in _ACCEPTS and not _ACCEPTS[kind](self.facts, value, leaf)):
            return False
        if kind is Literal or kind is near or leaf is anything:
            return True
        bound = self.bindings.setdefault(leaf, value)
        return bound is value or self.facts.same(bound, value)

    def operand_orders(self, op: Op, node: ir.Node) -> Iterable[Sequence[Any]]:
        """Return the inputs of a node for the operands of an op, in each order that can match.

        The two inputs of a commutative op, or of an op variable with ``swap``, can match in either
        order. Inputs can be distributed to variadic variables in each possible way. The result is
        empty if the node has too many or too few inputs. Missing inputs at the end are None.
        """
        inputs = node.inputs
        count = len(op.operands)
        if True in op.variadic:
            return _distributions(inputs, op.variadic)
        if len(inputs) != count:
            if any(v is not None for v in inputs[count:]):
                return ()
            inputs = (*inputs[:count], *[None] * (count - len(inputs)))
        may_swap = op.variable is not None and op.variable.swap is not None
        may_commute = may_swap or (node.op_type in COMMUTATIVE and not op.domain)
        if count == 2 and may_commute and inputs[0] is not inputs[1]:
            return inputs, inputs[::-1]
        return (inputs,)

    @cached_property
    def is_exact(self) -> bool:
        """Whether the rewrite of the match certainly keeps every bit of the results."""
        inexact = self.rule.inexact
        return not inexact if isinstance(inexact, bool) else self.holds(~inexact)

    @cached_property
    def roots(self) -> Sequence[ir.Value]:
        """The values that the rewrite replaces, in the order of the pattern's outputs."""
        first, *further = self.rule.pair.patterns
        bindings = self.bindings
        if type(first) is AllOutputs:
            outputs: Sequence[ir.Value] = bindings[first.op].outputs
            return outputs
        return [bindings[result], *[bindings[o.op].outputs[o.index] for o in further]]

    @cached_property
    def nodes(self) -> dict[ir.Node, None]:
        """All matched nodes, in the order of the pattern."""
        contents = map(self.bindings.get, self.rule.symbols)
        # onnx-ir's classes are protocols, for which `isinstance` is slow
        return {each: None for each in contents if type(each) is ir.Node}


_PLAIN_TYPES = frozenset((str, int, float, bool, type(None), ir.DataType))


@final
@dataclass(eq=False, slots=True)
class PendingOperand:
    """A goal of the search: the pattern must match the value."""

    pattern: Expression
    value: Any
    """The value; None for an omitted input, a tuple for a variadic variable."""
    remaining: Pending
    """The goals after this one."""


@final
@dataclass(eq=False, slots=True)
class PendingConditions:
    """A goal of the search: the conditions must be true.

    The symbols of the conditions are bound when the matcher reaches the goal.
    """

    conditions: list[Term]
    remaining: Pending
    """The goals after this one."""


Pending = PendingOperand | PendingConditions | None
"""A stack of goals: each goal refers to the next one. None is the empty stack."""


def find_match(
    rule: Rule,
    node: ir.Node,
    facts: ModelFacts,
    *,
    exact: bool,
    make_match: Callable[..., Match] = Match,
) -> Match | None:
    """Match a rule with a node as the first root of the pattern.

    Args:
        rule: The rule.
        node: The node.
        facts: The facts of the model.
        exact: Whether the rewrite must keep every bit.
        make_match: Called with the rule, the facts, the checks and the first bindings. It returns
            the match that the search completes.

    Returns:
        The match, or None if the rule does not match.
    """
    for root, checks in (rule.checks_of_exact if exact else rule.checks).items():
        op = root.op
        outputs = node.outputs
        if op is not None and node.op_type in op.op_types and root.index < len(outputs):
            value = outputs[root.index]
            match = make_match(rule, facts, checks, {result: value})
            last = PendingConditions(checks[None], None) if None in checks else None
            if match_all(match, PendingOperand(root, value, last)):
                return match
    return None


def match_all(match: Match, pending: Pending) -> bool:
    """Reach all pending goals, and extend the bindings of the match.

    The conditions in ``match.checks`` are checked as soon as their symbols are bound.

    Returns:
        Whether all goals were reached. Otherwise the bindings are incomplete.
    """
    checks = match.checks
    while pending is not None:
        remaining = pending.remaining
        if type(pending) is PendingConditions:
            if not all(map(match.holds, pending.conditions)):
                return False
            pending = remaining
            continue
        pattern = pending.pattern
        value = pending.value
        op = pattern.op
        if op is not None:
            is_bound = op in match.bindings
            if not match.accepts_op(pattern, value):
                return False
            if is_bound:
                pending = remaining
                continue
            if op in checks and not all(map(match.holds, checks[op])):
                return False
            swap = None if op.variable is None else op.variable.swap
            orders = match.operand_orders(op, value.producer())
            if type(orders) is tuple and len(orders) == 1:
                if swap is not None:
                    match.bindings[swap] = False
                pending = _with_operands(op, orders[0], remaining)
                continue
            # `map` is lazy, because an op with thousands of inputs may have as many distributions
            alternatives: Iterable[Pending] = map(
                partial(_with_operands, op, remaining=remaining), orders
            )
            return try_alternatives(match, alternatives, swap)
        if type(pattern) is any_of:
            match.bindings[pattern] = value
            if pattern in checks:
                remaining = PendingConditions(checks[pattern], remaining)
            choices = [PendingOperand(choice, value, remaining) for choice in pattern.operands]
            return try_alternatives(match, choices)
        if not match.accepts_leaf(pattern, value):
            return False
        pending = remaining
        if pattern in checks:
            pending = PendingConditions(checks[pattern], remaining)
    return True


def try_alternatives(
    match: Match, alternatives: Iterable[Pending], swap: object | None = None
) -> bool:
    """Try alternatives in order until all goals of one are reached.

    Each alternative begins with the same bindings.

    Args:
        match: The match. Its bindings become those of the last alternative tried.
        alternatives: The stacks of goals.
        swap: The symbol for whether the two operands of an op are in reverse order. It is False for
            the first alternative, and True for others.

    Returns:
        Whether an alternative matched.
    """
    bindings = match.bindings
    for index, pending in enumerate(alternatives):
        match.bindings = bindings.copy()
        if swap is not None:
            match.bindings[swap] = index > 0
        if match_all(match, pending):
            return True
    return False


def _with_operands(op: Op, inputs: Sequence[Any], remaining: Pending) -> Pending:
    """Return the goals that match the operands of an op in order, before the remaining goals."""
    for operand, value in zip(op.operands[::-1], inputs[::-1], strict=True):
        remaining = PendingOperand(operand, value, remaining)
    return remaining


def _has_attributes(facts: ModelFacts, op: Op, node: ir.Node, bindings: _Bindings) -> bool:
    """Return whether the attributes of a node match those of an op, and bind the symbols.

    The symbols are the attribute variables and the op variable. If the op variable is bound, the
    two nodes must have the same op type and attributes.
    """
    if op.variable is None:
        if node.attributes.data and not facts.has_only_defaults(node, op.attributes):
            return False
    else:
        other = bindings.setdefault(op.variable, node)
        if other is not node and not _is_same_op(node, other):
            return False
    for name in op.attributes:
        expected = op.attributes[name]
        if expected is anything:
            continue
        value = facts.attribute(node, name)
        if value is None:
            return False
        if type(expected) is Attribute:
            bound = bindings.setdefault(expected, value)
            if bound is not value and not identical(bound, value):
                return False
        elif not identical(as_stored(value), as_stored(expected)):
            return False
    return True


def _is_same_op(node: ir.Node, other: ir.Node) -> bool:
    """Return whether two nodes have the same op type and certainly the same attributes."""
    if node.op_type != other.op_type:
        return False
    content = content_of_attributes(node.attributes.data.values())
    return content is not None and content == content_of_attributes(other.attributes.data.values())


_DIGITS = range(6, 17)
"""Numbers of significant digits to which exporters may have rounded a constant."""
_FLOAT32_EPSILON = 2**-23


def _is_near(facts: ModelFacts, value: ir.Value, leaf: near) -> bool:
    array = facts.constness.array(value)
    if array is None or array.size != 1 or array.dtype.kind not in "fV":
        return False
    element = float(array.reshape(())[()])
    number = leaf.literal
    rounded_to_dtype = float(np.asarray(number).astype(array.dtype))
    rounded_to_digits = (float(f"{number:.{digits}g}") for digits in _DIGITS)
    candidates = (rounded_to_dtype, *rounded_to_digits)
    return any(math.isclose(element, each, rel_tol=_FLOAT32_EPSILON) for each in candidates)


_ACCEPTS: dict[type, Callable[[ModelFacts, ir.Value, Any], bool | None]] = {
    Constant: lambda facts, value, _: facts.constness.is_constant(value),
    Literal: lambda facts, value, leaf: facts.is_number(value, leaf.literal),
    near: _is_near,
    filled: lambda facts, value, leaf: facts.constness.all_equal(value, leaf.literal),
}
"""For some classes of leaves, the function that returns whether a leaf accepts a value.

None counts as False. Leaves of other classes accept any value.
"""


def _distributions(inputs: Sequence[Any], variadic: Sequence[bool]) -> Iterable[tuple[Any, ...]]:
    """Return each distribution of inputs to operands in order.

    In a distribution, a variadic operand has a tuple of inputs.

    Args:
        inputs: The inputs.
        variadic: For each operand, whether it is a variadic variable. At least one must be.

    Returns:
        The distributions. They are empty if there are too few inputs.
    """
    index = variadic.index(True)
    following = variadic[index + 1 :]
    max_length = len(inputs) - index - following.count(False)
    if max_length < 0:
        return ()
    if True in following:
        return _distributions_to_several(inputs, index, max_length, following)
    end = index + max_length
    return ((*inputs[:index], tuple(inputs[index:end]), *inputs[end:]),)


def _distributions_to_several(
    inputs: Sequence[Any], index: int, max_length: int, following: Sequence[bool]
) -> Iterator[tuple[Any, ...]]:
    """Yield the distributions to several variadic operands.

    Args:
        inputs: The inputs.
        index: The index of the first variadic operand.
        max_length: The maximum number of inputs for this operand. Shorter tuples come first.
        following: For each operand after this one, whether it is a variadic variable.
    """
    for end in range(index, index + max_length + 1):
        elements = tuple(inputs[index:end])
        for following_inputs in _distributions(inputs[end:], following):
            yield *inputs[:index], elements, *following_inputs


def as_stored(value: Any) -> Any:
    """Return the value of an attribute as stored in a node. A float becomes the nearest float32.

    Tuples do not change.
    """
    return float(np.float32(value)) if type(value) is float else value
