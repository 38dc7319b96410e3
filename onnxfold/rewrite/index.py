"""Which rules could match a node: by its op and what makes its inputs, remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite.check import is_available
from onnxfold.rewrite.facts import COMMUTATIVE, Facts
from onnxfold.rewrite.patterns import (
    AnyOf,
    ConstantVariable,
    Expression,
    Filled,
    Literal,
    Omitted,
    Op,
    Optional,
    OutputOf,
    Rest,
)
from onnxfold.rewrite.rule import Rule

_Origin = tuple[str, str, bool] | None
"""What makes an input: op type, domain, constant or not; None for an omitted input."""


class RuleIndex:
    """The rules that hold at one set of opsets, by what a node looks like from outside.

    Two nodes of the same op whose inputs come from the same kinds of nodes have the same
    candidates, so these are found once for each such signature.

    Args:
        rules: The rules, in any order.
        opsets: The opsets of the graphs that the index is for.
        facts: The model.
    """

    def __init__(self, rules: Iterable[Rule], opsets: Mapping[str, int], facts: Facts) -> None:
        self._facts = facts
        self._by_op: dict[str, list[tuple[Rule, Op]]] = {}
        self._by_signature: dict[Any, Sequence[Rule]] = {}
        self._origins: dict[ir.Value | None, _Origin] = {None: None}
        for rule in sorted(rules, key=lambda r: -r.benefit):
            if _holds_at(rule, opsets):
                self._add(rule)

    def _add(self, rule: Rule) -> None:
        for root in rule.roots:
            op = root.op if isinstance(root, OutputOf) else root
            assert isinstance(op, Op)
            for op_type in op.op_types:
                self._by_op.setdefault(op_type, []).append((rule, op))

    def candidates(self, node: ir.Node) -> Sequence[Rule]:
        """The rules that could match the node, best first."""
        op_type = node._op_type  # the properties cost more than the lookup
        if op_type not in self._by_op:
            return ()
        origins = self._origins
        try:
            inputs = tuple([origins[value] for value in node._inputs])
        except KeyError:
            inputs = tuple([self._origin(value) for value in node._inputs])
        found = self._by_signature.get((op_type, inputs))
        if found is None:
            found = self._by_signature[op_type, inputs] = self._find(node, inputs)
        return found

    def _origin(self, value: ir.Value | None) -> _Origin:
        if value is None:
            return None
        origin = self._origins.get(value)
        if origin is None:
            node = value.producer()
            constant = self._facts.known.is_constant(value)
            origin = ("", "", constant) if node is None else (node.op_type, node.domain, constant)
            self._origins[value] = origin
        return origin

    def _find(self, node: ir.Node, origins: Sequence[_Origin]) -> Sequence[Rule]:
        found = {
            rule: None
            for rule, op in self._by_op[node.op_type]
            if op.domain == node.domain and _could_match(op, node, origins)
        }
        return tuple(found)

    def forget(self, rule: Rule) -> None:
        """Never offer the rule again."""
        for op_type, entries in self._by_op.items():
            self._by_op[op_type] = [entry for entry in entries if entry[0] is not rule]
        self._by_signature.clear()


def _holds_at(rule: Rule, opsets: Mapping[str, int]) -> bool:
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
    if any(isinstance(operand, Rest) for operand in operands):
        return True
    if any(origin is not None for origin in origins[len(operands) :]):
        return False
    padded = [*origins[: len(operands)], *[None] * (len(operands) - len(origins))]
    if all(_could_be(o, origin) for o, origin in zip(operands, padded, strict=True)):
        return True
    if len(operands) != 2 or node.op_type not in COMMUTATIVE:
        return False
    return _could_be(operands[0], padded[1]) and _could_be(operands[1], padded[0])


def _could_be(pattern: Expression, origin: _Origin) -> bool:
    """False if a value of that origin certainly does not match."""
    if isinstance(pattern, Omitted):
        return origin is None
    if isinstance(pattern, Optional):
        return origin is None or _could_be(pattern.inner, origin)
    if origin is None:
        return isinstance(pattern, AnyOf) and any(_could_be(c, origin) for c in pattern.choices)
    if isinstance(pattern, AnyOf):
        return any(_could_be(choice, origin) for choice in pattern.choices)
    if isinstance(pattern, (ConstantVariable, Literal, Filled)):
        return origin[2]
    if isinstance(pattern, OutputOf):
        pattern = pattern.op
    if isinstance(pattern, Op):
        return origin[0] in pattern.op_types and origin[1] == pattern.domain
    return True
