"""Variables: what stands for any value, or for any of some kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfold.rewrite.patterns.expression import Expression, Several


class Variable(Expression):
    """Stands for a value; in several places for the same one."""

    weight = 5

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class ValueVariable(Variable):
    """Any value."""


class ConstantVariable(ValueVariable):
    """Any compile-time constant."""

    weight = 1


class VariadicVariable(Variable):
    """Any number of inputs, none included: ``op.Concat(*xs, axis=a)``."""

    weight = 6

    def __init__(self, name: str, *, constant: bool = False) -> None:
        super().__init__(name)
        self.constant = constant

    def __iter__(self) -> Iterator[Rest]:
        yield Rest(self)


class Rest(Several):
    """A variadic variable in its place among the inputs."""

    weight = 6

    def __init__(self, variable: VariadicVariable) -> None:
        self.variable = variable

    def children(self) -> Sequence[Expression]:
        """The variable."""
        return (self.variable,)

    def __repr__(self) -> str:
        return f"*{self.variable!r}"


class Optional(Expression):
    """An input that may be omitted."""

    weight = 6

    def __init__(self, inner: Expression) -> None:
        self.inner = inner

    def children(self) -> Sequence[Expression]:
        """What it is if it is there."""
        return (self.inner,)

    def __repr__(self) -> str:
        return f"optional({self.inner!r})"


class Omitted(Expression):
    """No input here: ``None`` in a pattern or replacement."""

    weight = 0

    def __repr__(self) -> str:
        return "None"


class Result(Expression):
    """The value that the pattern's root makes, in conditions: ``same_shape(x, result)``."""

    def __repr__(self) -> str:
        return "result"


result = Result()
