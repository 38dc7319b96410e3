"""Which rules could match a node: by its op and what makes its inputs, remembered."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite.check import is_available
from onnxfold.rewrite.facts import COMMUTATIVE, Facts
from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    ConstantVariable,
    Expression,
    Filled,
    Literal,
    Near,
    Omitted,
    Op,
    Optional,
    OutputOf,
    Rest,
    Several,
)
from onnxfold.rewrite.rule import Rule

_Origin = tuple[str, str, bool, float | None] | None
"""What makes an input: op type, domain, constant or not, and which of the numbers that rules ask
for a constant begins with (NaN for another one, None if not known); None for an omitted input."""

# One object: as a NaN it equals nothing but itself.
_OTHER = math.nan
_Imports = tuple[tuple[str, int], ...]


class _Table:
    """The rules that hold at one set of opsets, by op and by signature; the same for all models."""

    def __init__(self, rules: Iterable[Rule], imports: _Imports) -> None:
        self.by_op: dict[str, list[tuple[Rule, Op]]] = {}
        self.by_signature: dict[Any, Sequence[Rule]] = {}
        self.numbers: dict[str, set[float]] = {}
        """The numbers that the rules for an op ask for."""
        for rule in sorted(rules, key=lambda r: -r.benefit):
            if _holds_at(rule, imports):
                self._add(rule)

    def _add(self, rule: Rule) -> None:
        for root in rule.roots:
            op = root.op if isinstance(root, (OutputOf, AllOutputs)) else root
            assert isinstance(op, Op)
            numbers = {
                number for operand in op.operands if (number := _number(operand)) is not None
            }
            for op_type in op.op_types:
                self.by_op.setdefault(op_type, []).append((rule, op))
                if numbers:
                    self.numbers.setdefault(op_type, set()).update(numbers)

    def find(self, node: ir.Node, origins: Sequence[_Origin]) -> Sequence[Rule]:
        """The rules that could match a node with such inputs, best first."""
        found = {
            rule: None
            for rule, op in self.by_op[node.op_type]
            if op.domain == node.domain and _could_match(op, node, origins)
        }
        return tuple(found)


# Most models have the same few opsets.
_table_of = functools.lru_cache(maxsize=32)(_Table)


class RuleIndex:
    """The rules that could match a node of one model, by what it looks like from outside.

    Two nodes of the same op whose inputs come from the same kinds of nodes have the same
    candidates, so these are found once for each such signature.

    Args:
        rules: The rules, in any order.
        opsets: The opsets of the graphs that the index is for.
        facts: The model.
    """

    def __init__(self, rules: Sequence[Rule], opsets: Mapping[str, int], facts: Facts) -> None:
        self._facts = facts
        self._table = _table_of(tuple(rules), tuple(sorted(opsets.items())))
        self._origins: dict[ir.Value | None, _Origin] = {None: None}
        self._first: dict[ir.Value, float | None] = {}

    def candidates(self, node: ir.Node) -> Sequence[Rule]:
        """The rules that could match the node, best first."""
        op_type = node._op_type  # the properties cost more than the lookup
        if op_type not in self._table.by_op:
            return ()
        inputs = self._inputs(node, op_type)
        signature = (op_type, node._domain, inputs)
        found = self._table.by_signature.get(signature)
        if found is None:
            found = self._table.by_signature[signature] = self._table.find(node, inputs)
        return found

    def _inputs(self, node: ir.Node, op_type: str) -> tuple[_Origin, ...]:
        numbers = self._table.numbers.get(op_type)
        if numbers is None:
            origins = self._origins
            try:
                return tuple([origins[value] for value in node._inputs])
            except KeyError:
                return tuple([self._origin(value) for value in node._inputs])
        return tuple([self._origin_with_number(value, op_type) for value in node._inputs])

    def _origin(self, value: ir.Value | None) -> _Origin:
        if value is None:
            return None
        origin = self._origins.get(value)
        if origin is None:
            node = value.producer()
            constant = self._facts.known.is_constant(value)
            made_by = ("", "") if node is None else (node.op_type, node.domain)
            origin = self._origins[value] = (*made_by, constant, None)
        return origin

    def _origin_with_number(self, value: ir.Value | None, op_type: str) -> _Origin:
        """For an op whose rules ask for numbers: most constants are none of them."""
        origin = self._origin(value)
        if value is None or origin is None or not origin[2]:
            return origin
        if value not in self._first:
            self._first[value] = self._facts.known.first_number(value)
        first = self._first[value]
        if first is None:
            return origin
        return (*origin[:3], first if first in self._table.numbers[op_type] else _OTHER)


@functools.lru_cache(maxsize=1 << 14)
def _holds_at(rule: Rule, imports: _Imports) -> bool:
    """True if all ops of the rule exist as written; asked in every round of every model."""
    opsets = dict(imports)
    low, high = rule.opset
    version = opsets.get("", 1)
    if version < low or (high is not None and version > high):
        return False
    return all(
        is_available(expression, opsets)
        for side in (rule.pair.patterns, rule.pair.replacements)
        for root in side
        for expression in root.walk()
        if isinstance(expression, Op)
    )


def _could_match(op: Op, node: ir.Node, origins: Sequence[_Origin]) -> bool:
    operands = op.operands
    if any(isinstance(operand, Several) for operand in operands):
        return _could_be_among(operands, origins)
    if any(origin is not None for origin in origins[len(operands) :]):
        return False
    padded = [*origins[: len(operands)], *[None] * (len(operands) - len(origins))]
    if all(_could_be(o, origin) for o, origin in zip(operands, padded, strict=True)):
        return True
    may_cross = node.op_type in COMMUTATIVE or (op.variable is not None and op.variable.swap)
    if len(operands) != 2 or not may_cross:
        return False
    crossed = zip(operands, reversed(padded), strict=True)
    return all(_could_be(o, origin) for o, origin in crossed)


def _could_be_among(operands: Sequence[Expression], origins: Sequence[_Origin]) -> bool:
    """Operands with variadic ones among them: those before the first of these have their place."""
    rests = [k for k, operand in enumerate(operands) if isinstance(operand, Several)]
    if len(origins) < len(operands) - len(rests):
        return False
    for k, operand in enumerate(operands):
        if isinstance(operand, Rest):
            continue
        places = origins[k : k + 1] if k < rests[0] else origins
        if not any(_could_be(operand, origin) for origin in places):
            return False
    return True


def _number(pattern: Expression) -> float | None:
    """The number that all elements of an operand must be, if there is one."""
    return pattern.number if isinstance(pattern, (Literal, Filled)) else None


def _could_be(pattern: Expression, origin: _Origin) -> bool:
    """False if a value of that origin certainly does not match."""
    if isinstance(pattern, Omitted):
        return origin is None
    if isinstance(pattern, Optional):
        return origin is None or _could_be(pattern.inner, origin)
    if isinstance(pattern, AnyOf):
        return any(_could_be(choice, origin) for choice in pattern.choices)
    if origin is None:
        return False
    number = _number(pattern)
    if number is not None and origin[3] is not None and origin[3] != number:
        return False
    if isinstance(pattern, (ConstantVariable, Literal, Near, Filled)):
        return origin[2]
    if isinstance(pattern, (OutputOf, AllOutputs)):
        pattern = pattern.op
    if isinstance(pattern, Op):
        return origin[0] in pattern.op_types and origin[1] == pattern.domain
    return True
