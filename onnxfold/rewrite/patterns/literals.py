"""Constants that are written down: numbers in a pattern, small tensors in a replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.rewrite.patterns.expression import DONE, FAIL, Alternatives, Expression
from onnxfold.rewrite.patterns.variables import result

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Bindings, Matching


class Literal(Expression):
    """A number. A pattern matches a constant of one element with exactly that value."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match a scalar or one-element constant."""
        return DONE if value is not None and matching.is_number(value, self.number) else FAIL

    def __repr__(self) -> str:
        return repr(self.number)


class Filled(Expression):
    """A constant of any shape all of whose elements are the number."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match a uniform constant."""
        known = matching.facts.known
        return DONE if value is not None and known.all_equal(value, self.number) else FAIL

    def __repr__(self) -> str:
        return f"filled({self.number!r})"


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
