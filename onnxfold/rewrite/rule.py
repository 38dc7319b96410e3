"""Rules: a pattern, what replaces it, and when."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxfold.errors import OnnxFoldError
from onnxfold.rewrite.patterns import (
    AnyOf,
    AttributeVariable,
    Expression,
    Op,
    Optional,
    OptionalAttribute,
    OutputOf,
    Pair,
    ValueVariable,
    Variable,
    result,
)
from onnxfold.rewrite.terms import Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match


class RuleError(OnnxFoldError):
    """A rule is wrong: as it is written, or in what it does."""


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


@dataclass(eq=False)
class Rule:
    """A declarative rewrite. Made by `rule`."""

    pair: Pair
    where: tuple[Term, ...]
    inexact: bool | Term
    opset: tuple[int, int | None]
    doc: str
    file: str
    line: int
    benefit: int = 0
    target: str | None = None
    shared: bool = False
    on_constants: bool = False
    seen_in: str = ""
    """A model in which it fires."""
    ours: bool = False
    """Whether it comes with onnxfold."""
    keeps: bool = False
    """It rewrites nothing: what it matches is one thing to a runtime (see `keep`)."""
    name: str = ""
    """The module variable that holds the rule, once a rule set has collected it."""
    roots: tuple[Expression, ...] = field(init=False, default=())
    """The first root: an op (or output of one), or several alternatives."""
    elsewhere: tuple[Elsewhere, ...] = field(init=False, default=())
    """The other roots."""

    def __post_init__(self) -> None:
        first, *others = self.pair.patterns
        self.roots = tuple(first.choices) if isinstance(first, AnyOf) else (first,)
        shared = set(first.walk())
        elsewhere = []
        for other in others:
            elsewhere.append(Elsewhere(other, shared))
            shared |= set(other.walk())
        self.elsewhere = tuple(elsewhere)

    @functools.cached_property
    def names(self) -> dict[str, object]:
        """The variables of the pattern by name, and ``result``: what helpers are given."""
        found: dict[str, object] = {"result": result}
        for pattern in self.pair.patterns:
            for expression in pattern.walk():
                for variable in (expression, *_attribute_variables(expression)):
                    is_named = isinstance(variable, (Variable, AttributeVariable, Op))
                    if is_named and variable.name.isidentifier():
                        found.setdefault(variable.name, variable)
        return found

    @property
    def place(self) -> str:
        """File and line of the definition."""
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def label(self) -> str:
        """Name and place, for messages."""
        return f"rule {self.name} ({self.place})" if self.name else f"rule at {self.place}"

    def is_exact(self, match: Match) -> bool:
        """True if the rule certainly keeps every bit of this match's results."""
        if isinstance(self.inexact, Term):
            return self.inexact.holds(match) is False
        return not self.inexact

    def __str__(self) -> str:
        left, right = (
            " , ".join(map(repr, side)) for side in (self.pair.patterns, self.pair.replacements)
        )
        where = "".join(f"  where {condition!r}" for condition in self.where)
        return f"{left} >> {right}{where}"

    def __repr__(self) -> str:
        return self.label


def _attribute_variables(expression: Expression) -> list[Any]:
    wanted = list(expression.attributes.values()) if isinstance(expression, Op) else []
    return [each.variable if isinstance(each, OptionalAttribute) else each for each in wanted]


def _paths(expression: Expression, above: tuple[Op, ...], shared: set[Expression]) -> list[_Path]:
    if isinstance(expression, (ValueVariable, Op)) and expression in shared:
        return [(expression, above)] if above else [(expression, ())]
    if isinstance(expression, Op):
        above = (expression, *above)
    elif not isinstance(expression, (OutputOf, Optional, AnyOf)):
        return []
    return [path for child in expression.children() for path in _paths(child, above, shared)]
