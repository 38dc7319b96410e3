"""Which rules could match a node: by its op and what makes its inputs, remembered."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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


class _Candidates(NamedTuple):
    """The rules that could match nodes of one signature, best first."""

    rules: Sequence[Rule]
    on_constants: Sequence[Rule] | None
    """Those of them for a node whose results are constant; None if they cannot be."""


class _Table:
    """The rules that hold at one set of opsets, by op and by signature; the same for all models."""

    def __init__(self, rules: Iterable[Rule], imports: _Imports) -> None:
        self.by_op: dict[str, list[tuple[Rule, Op]]] = {}
        self.by_signature: dict[Any, _Candidates] = {}
        self.numbers: set[float] = set()
        """The numbers that rules ask for."""
        self.reach = 1
        """How many ops lie on the longest way through a pattern."""
        for rule in sorted(rules, key=lambda r: -r.benefit):
            if _holds_at(rule, imports):
                self._add(rule)

    def _add(self, rule: Rule) -> None:
        self.reach = max(self.reach, *map(_depth, rule.pair.patterns))
        for root in rule.roots:
            op = root.op if isinstance(root, (OutputOf, AllOutputs)) else root
            assert isinstance(op, Op)
            self.numbers.update(
                number for below in op.walk() if (number := _number(below)) is not None
            )
            for op_type in op.op_types:
                self.by_op.setdefault(op_type, []).append((rule, op))

    def find(self, node: ir.Node, origins: Sequence[_Origin]) -> _Candidates:
        """The rules that could match a node with such inputs."""
        found = {
            rule: None
            for rule, op in self.by_op[node.op_type]
            if op.domain == node.domain and _could_match(op, node, origins)
        }
        may_be_constant = all(origin is None or origin[2] for origin in origins)
        on_constants = tuple(rule for rule in found if rule.on_constants)
        return _Candidates(tuple(found), on_constants if may_be_constant else None)


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
        self._known = facts.known
        self._table = _table_of(tuple(rules), tuple(sorted(opsets.items())))
        self._origins: dict[ir.Value | None, _Origin] = {None: None}

    @property
    def reach(self) -> int:
        """How many ops lie on the longest way through a pattern, 1 at least."""
        return self._table.reach

    def candidates(self, node: ir.Node) -> Sequence[Rule]:
        """The rules that could match the node, best first.

        What is made of constants is constant propagation's, but for the rules that say so.
        """
        table, origins = self._table, self._origins
        op_type = node.op_type
        if op_type not in table.by_op:
            return ()
        try:
            inputs = tuple([origins[value] for value in node.inputs])
        except KeyError:
            inputs = tuple([self._origin(value) for value in node.inputs])
        signature = (op_type, node.domain, inputs)
        found = table.by_signature.get(signature)
        if found is None:
            found = table.by_signature[signature] = table.find(node, inputs)
        if found.on_constants is not None and self._known.is_constant(node.outputs[0]):
            return found.on_constants
        return found.rules

    def _origin(self, value: ir.Value | None) -> _Origin:
        if value in self._origins:
            return self._origins[value]
        assert value is not None
        node = value.producer()
        op_type, domain = ("", "") if node is None else (node.op_type, node.domain)
        constant = self._known.is_constant(value)
        number = self._known.first_number(value) if constant else None
        if number is not None and number not in self._table.numbers:
            number = _OTHER
        origin = self._origins[value] = (op_type, domain, constant, number)
        return origin


@functools.lru_cache(maxsize=1 << 14)
def _holds_at(rule: Rule, imports: _Imports) -> bool:
    """True if all ops of the rule exist as written; asked in every round of every model.

    Ops on constants in a replacement are computed before the model runs: those may be newer.
    """
    opsets = dict(imports)
    low, high = rule.opset
    version = opsets.get("", 1)
    if version < low or (high is not None and version > high):
        return False
    ops = [
        op
        for side in (rule.pair.patterns, rule.pair.replacements)
        for root in side
        for op in root.walk()
        if isinstance(op, Op) and not (side is rule.pair.replacements and op.is_constant)
    ]
    return all(is_available(op, opsets) for op in ops)


def _depth(pattern: Expression) -> int:
    return max(map(_depth, pattern.children()), default=0) + isinstance(pattern, Op)


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
