"""Ops and alternatives: what is made of other expressions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnxfold.rewrite.patterns.expression import Expression, Operand, Several
from onnxfold.rewrite.patterns.operands import as_expression


class AnyOf(Expression):
    """One of several patterns, the first that leads to a match."""

    weight = 4

    def __init__(self, choices: Sequence[Expression]) -> None:
        self.choices = choices

    def children(self) -> Sequence[Expression]:
        """The choices."""
        return self.choices

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(repr, self.choices))})"


class Swap:
    """Stands for a truth: the operands of an op are the other way round."""


class OpVariable:
    """An op of several possible types; the replacement can make the same op again.

    ``f = op.any_of("Relu", "Sigmoid")``: ``f(x)`` in a pattern matches either with whatever
    attributes; ``f(y)`` in the replacement is the op that matched, with the same attributes except
    those that are given anew (None removes one).

    Args:
        domain: The domain of the ops.
        op_types: Their types.
        either_way: The two operands match in either order, and are made in the order that matched.
    """

    def __init__(self, domain: str, op_types: Sequence[str], *, either_way: bool = False) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)
        self.swap = Swap() if either_way else None
        """What is bound to whether the operands are the other way round, if they may be."""

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
        self.output_count = attributes.pop("_outputs", None)
        """How many outputs a new node has, a number or term; None for as many as are used."""
        self.attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        self.variable = variable

    def __getitem__(self, index: Any) -> OutputOf:
        return OutputOf(self, index)

    @property
    def outputs(self) -> AllOutputs:
        """All outputs: ``op.Concat(*split.outputs, axis=0) >> x``."""
        return AllOutputs(self)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("name the outputs that you mean: split[0], split[1], *split.outputs")

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return self.operands

    def __repr__(self) -> str:
        arguments = [repr(o) for o in self.operands]
        arguments += [f"{name}={value!r}" for name, value in self.attributes.items()]
        return f"{'|'.join(self.op_types)}({', '.join(arguments)})"


class AllOutputs(Several):
    """All outputs of an op, as many as there are, in their order.

    As a whole pattern: each is replaced by one of all outputs of another op.
    """

    weight = 2

    def __init__(self, op: Op) -> None:
        self.op = op

    def __iter__(self) -> Iterator[AllOutputs]:
        yield self

    def children(self) -> Sequence[Expression]:
        """The op."""
        return (self.op,)

    def __repr__(self) -> str:
        return f"*{self.op!r}.outputs"


class OutputOf(Expression):
    """One output of an op with several.

    Args:
        op: The op.
        index: Which one; in a replacement a term, too.
    """

    weight = 2

    def __init__(self, op: Op, index: Any) -> None:
        self.op = op
        self.index = index

    def children(self) -> Sequence[Expression]:
        """The op."""
        return (self.op,)

    def __repr__(self) -> str:
        return f"{self.op!r}[{self.index}]"
