"""Ops and alternatives: what is made of other expressions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.rewrite.patterns.expression import (
    DONE,
    FAIL,
    Alternatives,
    Expression,
    Goal,
    Operand,
)
from onnxfold.rewrite.patterns.operands import as_expression
from onnxfold.rewrite.patterns.variables import Rest

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Bindings, Matching


class AnyOf(Expression):
    """One of several patterns, the first that leads to a match."""

    weight = 4

    def __init__(self, choices: Sequence[Expression]) -> None:
        self.choices = choices

    def children(self) -> Sequence[Expression]:
        """The choices."""
        return self.choices

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Try each choice."""
        return [((choice, value),) for choice in self.choices]

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(repr, self.choices))})"


class OpVariable:
    """An op of several possible types; the replacement can make the same op again.

    ``f = op.any_of("Relu", "Sigmoid")``: ``f(x)`` in a pattern matches either with whatever
    attributes; ``f(y)`` in the replacement is the op that matched, with the same attributes except
    those that are given anew (None removes one).
    """

    def __init__(self, domain: str, op_types: Sequence[str]) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)

    def __call__(self, *operands: Operand, **attributes: Any) -> Op:
        """The op that matches, or that has matched."""
        return Op(self.domain, self.op_types, operands, attributes, self)

    def __repr__(self) -> str:
        return "|".join(self.op_types)


class Op(Expression):
    """An op: as an operand it stands for its first output, ``[k]`` for another one."""

    weight = 2

    def __init__(
        self,
        domain: str,
        op_types: Sequence[str],
        operands: Iterable[Operand],
        attributes: dict[str, Any],
        variable: OpVariable | None = None,
    ) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)
        self.operands = tuple(as_expression(operand) for operand in operands)
        self.output_count: int | None = attributes.pop("_outputs", None)
        self.attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        self.variable = variable
        self._has_rest = any(isinstance(o, Rest) for o in self.operands)
        self._order = sorted(range(len(self.operands)), key=lambda k: self.operands[k].weight)

    def __getitem__(self, index: int) -> OutputOf:
        return OutputOf(self, index)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("name the outputs that you mean: split[0], split[1]")

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return self.operands

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match the node that makes the value as its first output."""
        node = None if value is None else value.producer()
        if node is None or value is None or value.index() != 0:
            return FAIL
        return self.expand_node(node, bindings, matching)

    def expand_node(self, node: ir.Node, bindings: Bindings, matching: Matching) -> Alternatives:
        """Match a node: op, attributes, and then its inputs in every possible order."""
        if node.op_type not in self.op_types or not matching.is_op(node, self.domain):
            return FAIL
        bound = bindings.get(self)
        if bound is not None:
            return DONE if bound is node else FAIL
        if not matching.bind_op(self, node, bindings):
            return FAIL
        bindings[self] = node
        inputs = node.inputs
        if self._has_rest:
            return self._spread(inputs)
        operands = self.operands
        count = len(operands)
        if len(inputs) > count and any(v is not None for v in inputs[count:]):
            return FAIL
        given = [inputs[k] if k < len(inputs) else None for k in range(count)]
        straight = [(operands[k], given[k]) for k in self._order]
        if count == 2 and matching.is_commutative(node) and given[0] is not given[1]:
            return (straight, [(operands[k], given[1 - k]) for k in self._order])
        return (straight,)

    def _spread(self, inputs: Sequence[ir.Value | None]) -> Alternatives:
        """Every way to give the variadic variables their share of the inputs."""
        rests = sum(isinstance(o, Rest) for o in self.operands)
        surplus = len(inputs) - (len(self.operands) - rests)
        if surplus < 0:
            return FAIL
        ways = []
        for cuts in itertools.combinations_with_replacement(range(surplus + 1), rests - 1):
            sizes = [b - a for a, b in itertools.pairwise((0, *cuts, surplus))]
            goals: list[Goal] = []
            position = 0
            for operand in self.operands:
                if isinstance(operand, Rest):
                    size = sizes.pop(0)
                    goals.append((operand, tuple(inputs[position : position + size])))
                    position += size
                else:
                    goals.append((operand, inputs[position]))
                    position += 1
            ways.append(goals)
        return ways

    def __repr__(self) -> str:
        arguments = [repr(o) for o in self.operands]
        arguments += [f"{name}={value!r}" for name, value in self.attributes.items()]
        return f"{'|'.join(self.op_types)}({', '.join(arguments)})"


class OutputOf(Expression):
    """One output of an op with several."""

    weight = 2

    def __init__(self, op: Op, index: int) -> None:
        self.op = op
        self.index = index

    def children(self) -> Sequence[Expression]:
        """The op."""
        return (self.op,)

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match the node that makes the value as that output."""
        node = None if value is None else value.producer()
        if node is None or value is None or value.index() != self.index:
            return FAIL
        return self.op.expand_node(node, bindings, matching)

    def __repr__(self) -> str:
        return f"{self.op!r}[{self.index}]"
