"""Terms: what a rule says about a match before there is one (``p``, ``dtype_of(x)``, ``p + 1``).

A term is evaluated on a match. Its value may be ``UNKNOWN`` (a shape that nobody can infer, say);
whatever is computed from something unknown is unknown. A condition is a term whose value is a
truth: a rule matches only where it is certainly true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.analysis.symbolic import Expr
from onnxfold.rewrite.facts import identical

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match

Truth = bool | None


class _Unknown:
    """The value of a term that the model does not determine."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value is neither true nor false")


UNKNOWN = _Unknown()


class Term:
    """Something that has a value once a rule has matched. Combine truths with ``& | ~``."""

    def evaluate(self, match: Match) -> Any:
        """The value on a match; ``UNKNOWN`` if the model does not determine it."""
        raise NotImplementedError

    def holds(self, match: Match) -> Truth:
        """The value as a truth: True, False, or None for unknown."""
        value = self.evaluate(match)
        return None if value is UNKNOWN else bool(value)

    def variables(self) -> Iterator[object]:
        """The variables that must be bound."""
        return iter(())

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return _comparison(operator.eq, self, other, "==")

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return _comparison(operator.ne, self, other, "!=")

    def __lt__(self, other: object) -> Term:
        return _comparison(operator.lt, self, other, "<")

    def __le__(self, other: object) -> Term:
        return _comparison(operator.le, self, other, "<=")

    def __gt__(self, other: object) -> Term:
        return _comparison(operator.gt, self, other, ">")

    def __ge__(self, other: object) -> Term:
        return _comparison(operator.ge, self, other, ">=")

    def is_in(self, *choices: object) -> Term:
        """The value is one of the choices."""
        return _comparison(lambda value, among: value in among, self, choices, "is in")

    def __add__(self, other: object) -> Term:
        return Call(operator.add, (self, other), "+")

    def __radd__(self, other: object) -> Term:
        return Call(operator.add, (other, self), "+")

    def __sub__(self, other: object) -> Term:
        return Call(operator.sub, (self, other), "-")

    def __rsub__(self, other: object) -> Term:
        return Call(operator.sub, (other, self), "-")

    def __mul__(self, other: object) -> Term:
        return Call(operator.mul, (self, other), "*")

    def __rmul__(self, other: object) -> Term:
        return Call(operator.mul, (other, self), "*")

    def __truediv__(self, other: object) -> Term:
        return Call(_quotient, (self, other), "/")

    def __rtruediv__(self, other: object) -> Term:
        return Call(_quotient, (other, self), "/")

    def __neg__(self) -> Term:
        return 0 - self

    def __getitem__(self, index: int) -> Term:
        return _Item(self, index)

    def __and__(self, other: Term) -> Term:
        return _And(self, as_condition(other))

    def __or__(self, other: Term) -> Term:
        return _Or(self, as_condition(other))

    def __invert__(self) -> Term:
        return _Not(self)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a term has no value before the rule matches; combine with & | ~")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a term cannot be taken apart before the rule matches; write a @given")


class Call(Term):
    """Two terms combined by an operator."""

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        sides: tuple[object, object],
        sign: str,
        *,
        symbols: bool = False,
    ) -> None:
        self._function = function
        self._sides = sides
        self._sign = sign
        self._symbols = symbols

    def evaluate(self, match: Match) -> Any:
        """Call the function, unless a side is unknown, or a symbol that it cannot take."""
        values = [evaluate(side, match) for side in self._sides]
        for value in values:
            if value is UNKNOWN or (not self._symbols and has_symbol(value)):
                return UNKNOWN
        found = self._function(*values)
        return UNKNOWN if found is None else found

    def variables(self) -> Iterator[object]:
        """The variables of both sides."""
        for side in self._sides:
            yield from variables_of(side)

    def __repr__(self) -> str:
        return f"{_bracketed(self._sides[0])} {self._sign} {_bracketed(self._sides[1])}"


class _Item(Term):
    """One element of a tuple."""

    def __init__(self, inner: Term, index: int) -> None:
        self._inner = inner
        self._index = index

    def evaluate(self, match: Match) -> Any:
        value = self._inner.evaluate(match)
        try:
            return UNKNOWN if value is UNKNOWN else value[self._index]
        except IndexError:
            return UNKNOWN

    def variables(self) -> Iterator[object]:
        return self._inner.variables()

    def __repr__(self) -> str:
        return f"{self._inner!r}[{self._index}]"


class _And(Term):
    sign = "&"

    def __init__(self, left: Term, right: Term) -> None:
        self.parts = (left, right)

    def evaluate(self, match: Match) -> Any:
        first = self.parts[0].holds(match)
        if first is False:
            return False
        second = self.parts[1].holds(match)
        if second is False:
            return False
        return True if first and second else UNKNOWN

    def variables(self) -> Iterator[object]:
        for part in self.parts:
            yield from part.variables()

    def __repr__(self) -> str:
        alike = [type(part) is type(self) for part in self.parts]
        shown = [
            repr(part) if same else _bracketed(part)
            for part, same in zip(self.parts, alike, strict=True)
        ]
        return f" {self.sign} ".join(shown)


class _Or(_And):
    sign = "|"

    def evaluate(self, match: Match) -> Any:
        first = self.parts[0].holds(match)
        if first:
            return True
        second = self.parts[1].holds(match)
        if second:
            return True
        return UNKNOWN if first is None or second is None else False


class _Not(Term):
    def __init__(self, inner: Term) -> None:
        self._inner = inner

    def evaluate(self, match: Match) -> Any:
        truth = self._inner.holds(match)
        return UNKNOWN if truth is None else not truth

    def variables(self) -> Iterator[object]:
        return self._inner.variables()

    def __repr__(self) -> str:
        return f"~{_bracketed(self._inner)}"


def as_condition(condition: object) -> Term:
    """The condition, if it is one.

    Raises:
        TypeError: it is no term.
    """
    from onnxfold.rewrite.given import given

    if isinstance(condition, FunctionType):
        return given(condition)
    if isinstance(condition, Term):
        return condition
    raise TypeError(f"{condition!r} is no condition: write a function of the rule's variables")


def evaluate(thing: object, match: Match) -> Any:
    """The value of a term, or a plain object as it is (lists and tuples of them included)."""
    if isinstance(thing, Term):
        return thing.evaluate(match)
    if isinstance(thing, FunctionType):
        return match.call(thing)
    if isinstance(thing, (list, tuple)):
        values = tuple(evaluate(item, match) for item in thing)
        return UNKNOWN if any(v is UNKNOWN for v in values) else values
    return thing


def variables_of(thing: object) -> list[object]:
    """The variables in a term or in a list with terms."""
    if isinstance(thing, Term):
        return list(thing.variables())
    if isinstance(thing, FunctionType):
        from onnxfold.rewrite.given import given

        return list(given(thing).variables())
    if isinstance(thing, (list, tuple)):
        return [v for item in thing for v in variables_of(item)]
    return []


def has_symbol(value: object) -> bool:
    """True for a symbolic size or a shape with one."""
    if isinstance(value, tuple):
        return any(isinstance(item, Expr) for item in value)
    return isinstance(value, Expr)


def _bracketed(thing: object) -> str:
    return f"({thing!r})" if isinstance(thing, (Call, _And)) else repr(thing)


def _quotient(dividend: Any, divisor: Any) -> Any:
    return dividend / divisor if divisor else None


# -------------------------------------------------------------------- comparing


def _comparison(compare: Callable[[Any, Any], Any], left: object, right: object, sign: str) -> Term:
    def compared(one: Any, other: Any) -> bool | None:
        return compare_values(compare, one, other)

    return Call(compared, (left, right), sign, symbols=True)


def compare_values(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool | None:
    """Three-valued comparison: None where a size that is not known could decide either way."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        same = np.shape(left) == np.shape(right)
        return same and bool(np.all(compare(left, right)))
    left, right = _plain(left), _plain(right)
    if has_symbol(left) or has_symbol(right):
        return _compare_symbolic(compare, left, right)
    if type(left) is type(right) is float:
        # attributes are float32: 0.1 in a rule means the attribute that is written 0.1
        left, right = float(np.float32(left)), float(np.float32(right))
    if compare is operator.eq:
        return identical(left, right)
    return not identical(left, right) if compare is operator.ne else bool(compare(left, right))


def _compare_symbolic(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool | None:
    if compare not in (operator.eq, operator.ne):
        return None
    if left == right:
        return compare is operator.eq
    if isinstance(left, tuple) and isinstance(right, tuple):
        differ = len(left) != len(right) or any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(left, right, strict=False)
        )
        if differ:
            return compare is operator.ne
    return None


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
