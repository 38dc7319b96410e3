"""Expressions: values in a pattern or in a replacement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from onnxfold.rewrite.patterns.pair import Pair

Operand = Union["Expression", float, None]


class Expression:
    """A value in a pattern or in a replacement."""

    weight = 1
    """Order in which operands are matched: what rules out the most comes first."""

    def __rshift__(self, replacement: Operand) -> Pair:
        from onnxfold.rewrite.patterns.pair import Pair

        return Pair([self], [replacement])

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return ()

    def walk(self) -> Iterator[Expression]:
        """The expression and all below it, each object once."""
        seen: set[int] = set()
        stack: list[Expression] = [self]
        while stack:
            expression = stack.pop()
            if id(expression) not in seen:
                seen.add(id(expression))
                yield expression
                stack.extend(reversed(expression.children()))


class Several(Expression):
    """Any number of values in one place."""
