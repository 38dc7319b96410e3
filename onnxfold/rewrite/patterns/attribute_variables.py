"""Attributes of an op in a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnxfold.rewrite.terms import Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match


class AttributeVariable(Term):
    """Stands for the value of an attribute: int, float, str, or a tuple of them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def evaluate(self, match: Match) -> Any:
        """The value that was bound."""
        return match[self]

    def variables(self) -> Iterator[object]:
        """Itself."""
        yield self

    def __repr__(self) -> str:
        return self.name


class OptionalAttribute:
    """An attribute that may be missing (and has no default): the variable is None then."""

    def __init__(self, variable: AttributeVariable) -> None:
        self.variable = variable

    def __repr__(self) -> str:
        return f"optional({self.variable!r})"


class _Special:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


absent = _Special("absent")
"""In a pattern: the attribute is not written at the node."""

anything = _Special("anything")
"""In a pattern: whatever the attribute is, there or not."""
