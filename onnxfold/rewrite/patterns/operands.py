"""What may be written in the place of an expression."""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite.patterns.expression import Expression
from onnxfold.rewrite.patterns.literals import Literal
from onnxfold.rewrite.patterns.variables import Omitted, VariadicVariable
from onnxfold.rewrite.terms import Term


def as_expression(operand: Any) -> Expression:
    """An expression of an operand: a number becomes a literal, None an omitted input."""
    if isinstance(operand, VariadicVariable):
        raise TypeError(f"write *{operand!r}: a variadic variable stands for several inputs")
    if isinstance(operand, Expression):
        return operand
    if operand is None:
        return Omitted()
    if isinstance(operand, (bool, int, float)):
        return Literal(operand)
    if isinstance(operand, Term):
        raise TypeError(f"{operand!r} is not a value: write constant({operand!r}, dtype)")
    raise TypeError(f"{operand!r} cannot stand for a value")
