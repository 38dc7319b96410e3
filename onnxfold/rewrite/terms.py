"""Terms: what a rule says about a match before there is one (``p``, ``dtype_of(x)``, ``p + 1``).

A term is evaluated on a match. Its value may be ``UNKNOWN`` (a shape that nobody can infer, say);
whatever is computed from something unknown is unknown. A comparison of terms is a predicate.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.analysis.symbolic import Expr

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match
    from onnxfold.rewrite.predicates import Predicate


class _Unknown:
    """The value of a term that the model does not determine."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value is neither true nor false")


UNKNOWN = _Unknown()


class Term:
    """Something that has a value once a rule has matched."""

    def evaluate(self, match: Match) -> Any:
        """The value on a match; ``UNKNOWN`` if the model does not determine it."""
        raise NotImplementedError

    def variables(self) -> Iterator[object]:
        """The variables that must be bound."""
        return iter(())

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return _comparison(operator.eq, self, other, "==")

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]
        return _comparison(operator.ne, self, other, "!=")

    def __lt__(self, other: object) -> Predicate:
        return _comparison(operator.lt, self, other, "<")

    def __le__(self, other: object) -> Predicate:
        return _comparison(operator.le, self, other, "<=")

    def __gt__(self, other: object) -> Predicate:
        return _comparison(operator.gt, self, other, ">")

    def __ge__(self, other: object) -> Predicate:
        return _comparison(operator.ge, self, other, ">=")

    def is_in(self, *choices: object) -> Predicate:
        """The value is one of the choices."""
        return _comparison(lambda value, among: value in among, self, choices, "is_in")

    def __add__(self, other: object) -> Term:
        return Call(operator.add, (self, other))

    def __radd__(self, other: object) -> Term:
        return Call(operator.add, (other, self))

    def __sub__(self, other: object) -> Term:
        return Call(operator.sub, (self, other))

    def __rsub__(self, other: object) -> Term:
        return Call(operator.sub, (other, self))

    def __mul__(self, other: object) -> Term:
        return Call(operator.mul, (self, other))

    def __rmul__(self, other: object) -> Term:
        return Call(operator.mul, (other, self))

    def __neg__(self) -> Term:
        return Call(operator.neg, (self,))

    def __getitem__(self, index: object) -> Term:
        return Call(_item, (self, index), symbolic=True)

    def __and__(self, other: object) -> Predicate:
        return _predicate(self) & _predicate(other)

    def __or__(self, other: object) -> Predicate:
        return _predicate(self) | _predicate(other)

    def __invert__(self) -> Predicate:
        return ~_predicate(self)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("a term has no value before the rule matches; combine with & | ~")

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a term cannot be taken apart before the rule matches; lift a function")


class Call(Term):
    """An ordinary function on the values of terms."""

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[object, ...], *, symbolic: bool = False
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._symbolic = symbolic

    def evaluate(self, match: Match) -> Any:
        """Call the function, unless an argument is unknown."""
        values = [evaluate(argument, match) for argument in self._arguments]
        for value in values:
            if value is UNKNOWN or (not self._symbolic and has_symbol(value)):
                return UNKNOWN
        return self._function(*values)

    def variables(self) -> Iterator[object]:
        """The variables of all arguments."""
        for argument in self._arguments:
            yield from variables_of(argument)

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", "call").strip("_<>")
        return f"{name}({', '.join(map(repr, self._arguments))})"


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of ordinary values one that also takes terms.

    Called with terms, it gives a term; it runs when the rule has matched, with the terms' values:
    attributes as int, float, str or tuple, shapes as tuple of int, constants as NumPy arrays. It
    may return ``UNKNOWN``: then the rule does not match. As a decorator::

        @lift
        def compose(p, q):
            return tuple(p[axis] for axis in q)
    """

    @functools.wraps(function)
    def lifted(*arguments: Any) -> Any:
        if any(variables_of(argument, deep=False) for argument in arguments):
            return Call(function, arguments)
        return function(*arguments)

    return lifted


def symbolic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of ordinary values one of terms, as :func:`lift` does.

    It also gets shapes with symbols, and may return None for what is not known: then the rule does
    not match.
    """

    def call(*values: Any) -> Any:
        found = function(*values)
        return UNKNOWN if found is None else found

    functools.update_wrapper(call, function)
    return lambda *terms: Call(call, terms, symbolic=True)


class _Computed(Term):
    def __init__(self, function: Callable[[Match], Any]) -> None:
        self._function = function

    def evaluate(self, match: Match) -> Any:
        found = self._function(match)
        return UNKNOWN if found is None else found

    def __repr__(self) -> str:
        return self._function.__name__.strip("_<>")


def computed(function: Callable[[Match], Any]) -> Term:
    """A term of a function of the match; where it gives None the rule does not match."""
    return _Computed(function)


def evaluate(thing: object, match: Match) -> Any:
    """The value of a term, a matched variable, or a plain object (lists of them included)."""
    if isinstance(thing, Term):
        return thing.evaluate(match)
    if isinstance(thing, (list, tuple)):
        values = tuple(evaluate(item, match) for item in thing)
        return UNKNOWN if any(v is UNKNOWN for v in values) else values
    return thing


def variables_of(thing: object, *, deep: bool = True) -> list[object]:
    """The variables in a term or in a list with terms; with ``deep`` off, the terms themselves."""
    if isinstance(thing, Term):
        return list(thing.variables()) if deep else [thing]
    if isinstance(thing, (list, tuple)):
        return [v for item in thing for v in variables_of(item, deep=deep)]
    return []


def has_symbol(value: object) -> bool:
    """True for a symbolic size or a shape with one."""
    if isinstance(value, tuple):
        return any(isinstance(item, Expr) for item in value)
    return isinstance(value, Expr)


def _predicate(condition: Any) -> Predicate:
    from onnxfold.rewrite.predicates import as_predicate

    return as_predicate(condition)


def _item(value: Any, index: Any) -> Any:
    try:
        return value[index]
    except IndexError:
        return UNKNOWN


def _comparison(
    compare: Callable[[Any, Any], Any], left: object, right: object, sign: str
) -> Predicate:
    from onnxfold.rewrite.predicates import Compared

    return Compared(compare, left, right, sign)


def compare_values(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool | None:
    """Three-valued comparison: None where a size that is not known could decide either way."""
    if left is UNKNOWN or right is UNKNOWN:
        return None
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        same = np.shape(left) == np.shape(right)
        return same and bool(np.all(compare(left, right)))
    left, right = _plain(left), _plain(right)
    if has_symbol(left) or has_symbol(right):
        return _compare_symbolic(compare, left, right)
    if isinstance(left, float) and isinstance(right, float):
        # attributes are float32: 0.1 in a rule means the attribute that is written 0.1
        left, right = float(np.float32(left)), float(np.float32(right))
    if compare is operator.eq:
        return identical(left, right)
    return not identical(left, right) if compare is operator.ne else bool(compare(left, right))


def identical(left: Any, right: Any) -> bool:
    """Equal numbers, texts or tuples of them; 0.0 and -0.0 differ."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    if left != right:
        return False
    if left == 0 and isinstance(left, float | int) and isinstance(right, float | int):
        return math.copysign(1, left) == math.copysign(1, right)
    return True


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
