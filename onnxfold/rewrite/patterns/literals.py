"""Constants that are written down: numbers in a pattern, small tensors in a replacement."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rewrite.patterns.expression import Expression
from onnxfold.rewrite.patterns.variables import Variable, result


class Literal(Expression):
    """A number. A pattern matches a constant of one element with exactly that value."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def __repr__(self) -> str:
        return repr(self.number)


class Near(Expression):
    """A constant of one element that is the number, as precisely as a float16 has it."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"near({self.number:.6g})"


class Filled(Variable):
    """A constant of any shape all of whose elements are the number."""

    weight = 1

    def __init__(self, number: float) -> None:
        super().__init__(f"filled({number!r})")
        self.number = number


class MadeConstant(Expression):
    """A small constant that a replacement makes from a term or number."""

    def __init__(self, content: object, dtype: object, like: Expression | None) -> None:
        self.content = content
        self.dtype = dtype
        self.like = like

    def children(self) -> Sequence[Expression]:
        """The value whose dtype it takes."""
        return () if self.like is None or self.like is result else (self.like,)

    def __repr__(self) -> str:
        return f"constant({self.content!r})"
