"""Variables: what stands for any value, or for any of some kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.rewrite.patterns.expression import DONE, FAIL, Alternatives, Expression

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Bindings, Matching


class Variable(Expression):
    """Stands for a value; in several places for the same one."""

    weight = 5

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class ValueVariable(Variable):
    """Any value."""

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind the value, or compare with what is bound."""
        if value is None:
            return FAIL
        if self in bindings:
            return DONE if matching.same(bindings[self], value) else FAIL
        bindings[self] = value
        return DONE


class ConstantVariable(ValueVariable):
    """Any compile-time constant."""

    weight = 1

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind the value if it is constant."""
        if value is None or not matching.facts.known.is_constant(value):
            return FAIL
        return super().expand(value, bindings, matching)


class VariadicVariable(Variable):
    """Any number of inputs, none included: ``op.Concat(*xs, axis=a)``."""

    weight = 6

    def __init__(self, name: str, *, constant: bool = False) -> None:
        super().__init__(name)
        self.constant = constant

    def __iter__(self) -> Iterator[Rest]:
        yield Rest(self)


class Rest(Expression):
    """A variadic variable in its place among the inputs."""

    weight = 6

    def __init__(self, variable: VariadicVariable) -> None:
        self.variable = variable

    def children(self) -> Sequence[Expression]:
        """The variable."""
        return (self.variable,)

    def expand(self, value: Any, bindings: Bindings, matching: Matching) -> Alternatives:
        """Bind a tuple of values."""
        if self.variable.constant and not all(
            v is not None and matching.facts.known.is_constant(v) for v in value
        ):
            return FAIL
        bound = bindings.setdefault(self.variable, value)
        return DONE if bound == value else FAIL

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

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind None if the input is not there."""
        if value is not None:
            return (((self.inner, value),),)
        for expression in self.inner.walk():
            if isinstance(expression, Variable):
                bound = bindings.setdefault(expression, None)
                if bound is not None:
                    return FAIL
        return DONE

    def __repr__(self) -> str:
        return f"optional({self.inner!r})"


class Omitted(Expression):
    """No input here: ``None`` in a pattern or replacement."""

    weight = 0

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match only an omitted input."""
        return DONE if value is None else FAIL

    def __repr__(self) -> str:
        return "None"


class Result(Expression):
    """The value that the pattern's root makes, in conditions: ``same_shape(x, result)``."""

    def __repr__(self) -> str:
        return "result"


result = Result()
