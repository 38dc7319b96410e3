"""Which rules could match a node: by its op and what makes its inputs, remembered."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
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
    Near,
    Omitted,
    Op,
    Optional,
    OutputOf,
    Rest,
    op_of,
)
from onnxfold.rewrite.rule import Rule, walk

_Origin = tuple[str, str, bool] | None
"""What makes an input: op type, domain, whether it is a constant; None for an omitted input."""
_Imports = tuple[tuple[str, int], ...]


class _Table:
    """The rules that hold at one set of opsets, by op and by signature; the same for all models."""

    def __init__(self, rules: Iterable[Rule], imports: _Imports) -> None:
        self._by_op: dict[tuple[str, str], list[tuple[Rule, Op]]] = {}
        self.by_signature: dict[Any, tuple[Sequence[Rule], Sequence[Rule]]] = {}
        """The rules for nodes that look alike, best first, and those of them for constants."""
        self.reach = 1
        """How many ops lie on the longest way through a pattern."""
        for rule in sorted(rules, key=lambda r: -r.benefit):
            if _holds_at(rule, imports):
                self.reach = max(self.reach, *map(_depth, rule.pair.patterns))
                for op in map(op_of, rule.roots):
                    for op_type in op.op_types:
                        self._by_op.setdefault((op_type, op.domain), []).append((rule, op))
        self.op_types = {op_type for op_type, _ in self._by_op}

    def find(
        self, op_type: str, domain: str, origins: Sequence[_Origin]
    ) -> tuple[Sequence[Rule], Sequence[Rule]]:
        """The rules that could match a node with such inputs."""
        found = {
            rule: None
            for rule, op in self._by_op.get((op_type, domain), ())
            if _could_match(op, op_type, origins)
        }
        return tuple(found), tuple(rule for rule in found if rule.on_constants)


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
        self._is_constant = facts.known.is_constant
        self._table = _table_of(tuple(rules), tuple(sorted(opsets.items())))
        self._origins: dict[ir.Value | None, _Origin] = {None: None}
        self.reach = self._table.reach
        """How many ops lie on the longest way through a pattern, 1 at least."""

    def candidates(self, node: ir.Node) -> Sequence[Rule]:
        """The rules that could match the node, best first.

        What is made of constants is constant propagation's, but for the rules that say so.
        """
        op_type, origins = node.op_type, self._origins
        if op_type not in self._table.op_types:
            return ()
        for value in node.inputs:
            if value is not None and value not in origins:
                origins[value] = self._origin(value)
        inputs = tuple([origins[value] for value in node.inputs])
        signature = op_type, node.domain, inputs
        found = self._table.by_signature.get(signature)
        if found is None:
            found = self._table.by_signature[signature] = self._table.find(*signature)
        rules, on_constants = found
        return on_constants if rules and self._is_constant(node.outputs[0]) else rules

    def _origin(self, value: ir.Value) -> _Origin:
        node = value.producer()
        op_type, domain = ("", "") if node is None else (node.op_type, node.domain)
        return op_type, domain, self._is_constant(value)


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
    needed = [op for op in walk(rule.pair.patterns) if isinstance(op, Op)]
    made = [op for op in walk(rule.pair.replacements) if isinstance(op, Op) and not op.is_constant]
    return all(is_available(op, opsets) for op in (*needed, *made))


def _depth(pattern: Expression) -> int:
    return max(map(_depth, pattern.operands), default=0) + isinstance(pattern, Op)


def _could_match(op: Op, op_type: str, origins: Sequence[_Origin]) -> bool:
    """False if a node with such inputs certainly does not match."""
    operands = op.operands
    first = next((k for k, operand in enumerate(operands) if isinstance(operand, Rest)), None)
    if first is not None:  # what comes behind a variadic variable may be anywhere
        return all(
            any(_could_be(operand, o) for o in (origins[k : k + 1] if k < first else origins))
            for k, operand in enumerate(operands)
            if not isinstance(operand, Rest)
        )
    if len(origins) > len(operands) and any(origins[len(operands) :]):
        return False
    may_cross = op_type in COMMUTATIVE or (op.variable is not None and op.variable.swap)
    orders = [origins[: len(operands)]]
    if len(operands) == 2 and may_cross:
        orders.append((*[None] * (2 - len(orders[0])), *reversed(orders[0])))
    return any(
        all(_could_be(o, origin) for o, origin in zip_longest(operands, order)) for order in orders
    )


def _could_be(pattern: Expression, origin: _Origin) -> bool:
    """False if a value of that origin certainly does not match."""
    if isinstance(pattern, Omitted):
        return origin is None
    if isinstance(pattern, Optional):
        return origin is None or _could_be(pattern.inner, origin)
    if isinstance(pattern, AnyOf):
        return any(_could_be(choice, origin) for choice in pattern.operands)
    if origin is None:
        return False
    op_type, domain, is_constant = origin
    if isinstance(pattern, (ConstantVariable, Literal, Near, Filled)):
        return is_constant
    if isinstance(pattern, (Op, OutputOf)):
        op = op_of(pattern)
        return op_type in op.op_types and domain == op.domain
    return True
