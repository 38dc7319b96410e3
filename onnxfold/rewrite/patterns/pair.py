"""A pattern and what takes its place."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rewrite.patterns.expression import Expression, Operand
from onnxfold.rewrite.patterns.operands import as_expression


class Pair:
    """``pattern >> replacement``, before it becomes a rule."""

    def __init__(self, patterns: Sequence[Expression], replacements: Sequence[Operand]) -> None:
        self.patterns = patterns
        self.replacements = [as_expression(replacement) for replacement in replacements]


class Outputs:
    """Several results: ``outputs(p, q) >> outputs(r, s)``."""

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self.expressions = expressions

    def __rshift__(self, replacement: Outputs) -> Pair:
        if not isinstance(replacement, Outputs):
            raise TypeError("several outputs are replaced by several: outputs(...) >> outputs(...)")
        return Pair(self.expressions, replacement.expressions)


def outputs(*expressions: Operand) -> Outputs:
    """Several results of a pattern or replacement, in the same order on both sides."""
    return Outputs([as_expression(e) for e in expressions])
