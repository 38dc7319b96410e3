"""Finding the second and further roots of a pattern, from a value it shares with the first."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite.match import Bindings, Matching
from onnxfold.rewrite.patterns import (
    FAIL,
    Alternatives,
    AnyOf,
    Expression,
    Op,
    Optional,
    OutputOf,
    ValueVariable,
)

_Path = tuple[Expression, tuple[Op, ...]]


class Elsewhere(Expression):
    """A root that is not above the first one: searched among the users of a shared value.

    Args:
        pattern: The pattern of this root.
        shared: The expressions that are bound when the search begins.
    """

    def __init__(self, pattern: Expression, shared: set[Expression]) -> None:
        self.pattern = pattern
        self._op = pattern.op if isinstance(pattern, OutputOf) else pattern
        self._index = pattern.index if isinstance(pattern, OutputOf) else 0
        self._paths = list(_paths(self._op, (), shared))

    @property
    def is_connected(self) -> bool:
        """True if the pattern shares a value with those before it."""
        return bool(self._paths) or not isinstance(self._op, Op)

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Every value that could be this root; the one that matches is bound to this object."""
        assert isinstance(self._op, Op)
        if self._op in bindings:
            return self._goals([bindings[self._op]], bindings)
        for start, ops in self._paths:
            bound = bindings.get(start)
            if bound is None:
                continue
            nodes = _users(bound if isinstance(bound, ir.Value) else bound.outputs)
            for op in ops[:-1]:
                nodes = [n for m in nodes if m.op_type in op.op_types for n in _users(m.outputs)]
            taken = {id(found) for found in bindings.values() if isinstance(found, ir.Node)}
            return self._goals([n for n in nodes if id(n) not in taken], bindings)
        return FAIL

    def _goals(self, nodes: list[ir.Node], bindings: Bindings) -> Alternatives:
        return [
            ((self.pattern, node.outputs[self._index]), (_Bind(self), node.outputs[self._index]))
            for node in nodes
            if len(node.outputs) > self._index
        ]


class _Bind(Expression):
    """Remember a value under a name."""

    def __init__(self, name: Expression) -> None:
        self._name = name

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind it."""
        bindings[self._name] = value
        return ((),)


def _paths(expression: Expression, above: tuple[Op, ...], shared: set[Expression]) -> list[_Path]:
    """Ways from a shared expression up to the root: the ops on the way, the root's last."""
    if isinstance(expression, (ValueVariable, Op)) and expression in shared:
        return [(expression, above)] if above else [(expression, ())]
    if isinstance(expression, Op):
        above = (expression, *above)
    elif not isinstance(expression, (OutputOf, Optional, AnyOf)):
        return []
    return [path for child in expression.children() for path in _paths(child, above, shared)]


def _users(values: ir.Value | tuple[ir.Value, ...] | object) -> list[ir.Node]:
    several = [values] if isinstance(values, ir.Value) else list(values)  # type: ignore[call-overload]
    return list({use.node: None for value in several for use in value.uses()})
