"""Conditions of rules: true, false, or unknown; a rule matches only what is certainly true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from onnxfold.rewrite.terms import UNKNOWN, Term, compare_values, evaluate, variables_of

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match
    from onnxfold.rewrite.patterns import Expression

Truth = bool | None


class Predicate:
    """A condition on a match. Combine with ``&``, ``|`` and ``~``."""

    def holds(self, match: Match) -> Truth:
        """True, False, or None for unknown."""
        raise NotImplementedError

    def variables(self) -> Iterator[object]:
        """The variables that must be bound."""
        return iter(())

    def __and__(self, other: Predicate | Term | Callable[[Match], bool]) -> Predicate:
        return _And(self, as_predicate(other))

    def __or__(self, other: Predicate | Term | Callable[[Match], bool]) -> Predicate:
        return _Or(self, as_predicate(other))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Predicate:
        return _Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a predicate has no truth before the rule matches; combine with & | ~")


class _And(Predicate):
    def __init__(self, left: Predicate, right: Predicate) -> None:
        self.parts = (left, right)

    def holds(self, match: Match) -> Truth:
        first = self.parts[0].holds(match)
        if first is False:
            return False
        second = self.parts[1].holds(match)
        if second is False:
            return False
        return True if first and second else None

    def variables(self) -> Iterator[object]:
        for part in self.parts:
            yield from part.variables()

    def __repr__(self) -> str:
        return f"({self.parts[0]!r} & {self.parts[1]!r})"


class _Or(_And):
    def holds(self, match: Match) -> Truth:
        first = self.parts[0].holds(match)
        if first:
            return True
        second = self.parts[1].holds(match)
        if second:
            return True
        return None if first is None or second is None else False

    def __repr__(self) -> str:
        return f"({self.parts[0]!r} | {self.parts[1]!r})"


class _Not(Predicate):
    def __init__(self, inner: Predicate) -> None:
        self._inner = inner

    def holds(self, match: Match) -> Truth:
        truth = self._inner.holds(match)
        return None if truth is None else not truth

    def variables(self) -> Iterator[object]:
        return self._inner.variables()

    def __repr__(self) -> str:
        return f"~{self._inner!r}"


class Compared(Predicate):
    """Two terms (or a term and a plain value) compared."""

    def __init__(
        self, compare: Callable[[Any, Any], Any], left: object, right: object, sign: str
    ) -> None:
        self._compare = compare
        self._sides = (left, right)
        self._sign = sign

    def holds(self, match: Match) -> Truth:
        """Compare the terms' values."""
        left, right = (evaluate(side, match) for side in self._sides)
        return compare_values(self._compare, left, right)

    def variables(self) -> Iterator[object]:
        """The variables of both sides."""
        for side in self._sides:
            yield from variables_of(side)

    def __repr__(self) -> str:
        return f"{self._sides[0]!r} {self._sign} {self._sides[1]!r}"


class About(Predicate):
    """A named condition on some values: ``test(match, *values)``."""

    def __init__(
        self, name: str, test: Callable[..., Truth], subjects: tuple[Any, ...], *options: Any
    ) -> None:
        self._name = name
        self._test = test
        self._subjects = subjects
        self._options = options

    def holds(self, match: Match) -> Truth:
        """Ask the test, unless a value is not there."""
        values = [match[subject] for subject in self._subjects]
        if any(value is None for value in values):
            return None  # an optional input that is not there
        return self._test(match, *values, *(evaluate(o, match) for o in self._options))

    def variables(self) -> Iterator[object]:
        """The values it is about."""
        yield from self._subjects
        for option in self._options:
            yield from variables_of(option)

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(map(repr, (*self._subjects, *self._options)))})"


class Uniform(About):
    """All elements of a constant are one number."""

    def __init__(self, x: Expression, number: float | Term) -> None:
        super().__init__("all_equal", lambda m, v, n: m.facts.known.all_equal(v, n), (x,), number)
        self.subject = x
        self.number = number


def numbers_required(condition: Predicate | None) -> dict[Expression, float]:
    """What a condition can only hold for: subpatterns, each all elements of which are a number."""
    if type(condition) is _And:
        left, right = condition.parts
        return {**numbers_required(left), **numbers_required(right)}
    if isinstance(condition, Uniform) and not isinstance(condition.number, Term):
        return {condition.subject: condition.number}
    return {}


class _Custom(Predicate):
    def __init__(self, function: Callable[[Match], object]) -> None:
        self._function = function

    def holds(self, match: Match) -> Truth:
        truth: object = self._function(match)
        return None if truth is None or truth is UNKNOWN else bool(truth)

    def __repr__(self) -> str:
        return getattr(self._function, "__name__", "condition").strip("<>")


class _True(Predicate):
    def __init__(self, term: Term) -> None:
        self._term = term

    def holds(self, match: Match) -> Truth:
        truth = self._term.evaluate(match)
        return None if truth is UNKNOWN else bool(truth)

    def variables(self) -> Iterator[object]:
        return self._term.variables()

    def __repr__(self) -> str:
        return repr(self._term)


def as_predicate(condition: Predicate | Term | Callable[[Match], Any]) -> Predicate:
    """A predicate of a condition: one as it is, a term for a truth, a function of the match."""
    if isinstance(condition, Predicate):
        return condition
    if isinstance(condition, Term):
        return _True(condition)
    if callable(condition):
        return _Custom(condition)
    raise TypeError(f"{condition!r} is neither a predicate nor a function of the match")
