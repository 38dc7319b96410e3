"""The second and further roots of a pattern, and the ways to them from what is matched before."""

from __future__ import annotations

from onnxfold.rewrite.patterns import AnyOf, Expression, Op, Optional, OutputOf, ValueVariable

_Path = tuple[Expression, tuple[Op, ...]]


class Elsewhere:
    """A root that is not above the first one: searched among the users of a shared value.

    Args:
        pattern: The pattern of this root.
        shared: The expressions that are bound when the search begins.
    """

    def __init__(self, pattern: Expression, shared: set[Expression]) -> None:
        self.pattern = pattern
        self.op = pattern.op if isinstance(pattern, OutputOf) else pattern
        self.index = pattern.index if isinstance(pattern, OutputOf) else 0
        self.paths = list(_paths(self.op, (), shared))
        """From a shared expression up to the root: the ops on the way, the root's last."""

    @property
    def is_connected(self) -> bool:
        """True if the pattern shares a value with those before it."""
        return bool(self.paths) or not isinstance(self.op, Op)


def _paths(expression: Expression, above: tuple[Op, ...], shared: set[Expression]) -> list[_Path]:
    if isinstance(expression, (ValueVariable, Op)) and expression in shared:
        return [(expression, above)] if above else [(expression, ())]
    if isinstance(expression, Op):
        above = (expression, *above)
    elif not isinstance(expression, (OutputOf, Optional, AnyOf)):
        return []
    return [path for child in expression.children() for path in _paths(child, above, shared)]
