"""Rules: a pattern, what replaces it, and when."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxfold.errors import OnnxFoldError
from onnxfold.rewrite.elsewhere import Elsewhere
from onnxfold.rewrite.patterns import (
    AnyOf,
    AttributeVariable,
    Expression,
    Filled,
    Op,
    OptionalAttribute,
    Pair,
    Variable,
    result,
)
from onnxfold.rewrite.terms import Term, as_condition

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match


class RuleError(OnnxFoldError):
    """A rule is wrong: as it is written, or in what it does."""


@dataclass(eq=False)
class Rule:
    """A declarative rewrite. Made by :func:`rule`."""

    pair: Pair
    where: Term | None
    inexact: bool | Term
    benefit: int
    opset: tuple[int, int | None]
    target: str | None
    shared: bool
    doc: str
    file: str
    line: int
    on_constants: bool = False
    ours: bool = False
    """Whether it comes with onnxfold."""
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
                    is_named = isinstance(variable, (Variable, AttributeVariable))
                    if is_named and not isinstance(variable, Filled):
                        found[variable.name] = variable
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
        where = f"  where {self.where!r}" if self.where is not None else ""
        return f"{left} >> {right}{where}"

    def __repr__(self) -> str:
        return self.label


def _attribute_variables(expression: Expression) -> list[Any]:
    wanted = list(expression.attributes.values()) if isinstance(expression, Op) else []
    return [each.variable if isinstance(each, OptionalAttribute) else each for each in wanted]


def rule(
    pair: Pair,
    *,
    where: Term | None = None,
    inexact: bool | Term = False,
    benefit: int = 0,
    opset: tuple[int, int | None] = (1, None),
    target: str | None = None,
    shared: bool = False,
    on_constants: bool = False,
    doc: str = "",
) -> Rule:
    """Make a rule of ``pattern >> replacement``.

    Args:
        pair: The pattern and what replaces it.
        where: A condition, which must be true for the rule to fire.
        inexact: Whether results can differ in their last bits (a NaN may also become a number, an
            infinity finite). Such a rule fires at level 2 only. A condition is asked for each
            match; unless it is certainly false the match counts as inexact.
        benefit: Of several rules that match, those with a higher benefit go first.
        opset: First and last version of ONNX's own ops for which the rule holds. Ops, attributes
            and input counts that a version does not have are found without it.
        target: The rule fires only if this target was asked for (``"onnxruntime"``).
        shared: Fire although nodes inside the pattern have other users, even if there are more
            nodes afterwards.
        on_constants: Fire also where the result is constant. Most of that is computed by constant
            propagation and needs no rule; this is for what it leaves because it would be larger.
        doc: What the rule does, in one line.

    Raises:
        RuleError: the rule cannot be right; the message says why and where it is written.
    """
    from onnxfold.rewrite.check import check_rule

    frame = sys._getframe(1)
    file, line = frame.f_code.co_filename, frame.f_lineno
    # ours are checked by a test: that takes as long as making them
    is_ours = frame.f_globals.get("__name__", "").startswith("onnxfold.rules.")
    try:
        if not isinstance(pair, Pair):
            raise TypeError("a rule is made of pattern >> replacement")
        made = Rule(
            pair,
            None if where is None else as_condition(where),
            inexact if isinstance(inexact, bool) else as_condition(inexact),
            benefit,
            opset,
            target,
            shared,
            doc,
            file,
            line,
            on_constants,
            is_ours,
        )
        if not is_ours:
            check_rule(made)
    except (TypeError, ValueError) as error:
        raise RuleError(f"rule at {os.path.basename(file)}:{line}: {error}") from error
    return made
