"""Expressions: values in a pattern or in a replacement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

import onnx_ir as ir

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Bindings, Matching
    from onnxfold.rewrite.patterns.pair import Pair

Goal = tuple["Expression", Any]
"""A pattern and what it has to match: a value, None for an omitted input, or a tuple of values."""

Alternatives = Sequence[Sequence[Goal]]
"""Ways to go on: each is a list of goals that all must be met. Empty means: no match."""

FAIL: Alternatives = ()
DONE: Alternatives = ((),)

Operand = Union["Expression", float, None]


class Expression:
    """A value in a pattern or in a replacement."""

    weight = 1
    """Order in which goals are tried: what rules out the most comes first."""

    def __rshift__(self, replacement: Operand) -> Pair:
        from onnxfold.rewrite.patterns.pair import Pair

        return Pair([self], [replacement])

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match a value; what is left to match, in as many ways as there are."""
        raise NotImplementedError

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
