"""Conditions of rules: true, false, or unknown; a rule matches only what is certainly true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.analysis.symbolic import Number
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite.terms import UNKNOWN, Call, Term, compare_values, evaluate, variables_of

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


class _Uniform(About):
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
    if isinstance(condition, _Uniform) and not isinstance(condition.number, Term):
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


# -------------------------------------------------------------------- dtypes


def floating(x: Expression) -> Predicate:
    """The dtype is a floating-point one."""
    return About("floating", lambda m, v: _dtype_is(m, v, lambda d: d.is_floating_point()), (x,))


def integer(x: Expression) -> Predicate:
    """The dtype is an integer one, signed or not (bool is none)."""
    return About("integer", lambda m, v: _dtype_is(m, v, lambda d: d.is_integer()), (x,))


def boolean(x: Expression) -> Predicate:
    """The dtype is bool."""
    return About("boolean", lambda m, v: _dtype_is(m, v, lambda d: d == ir.DataType.BOOL), (x,))


def same_dtype(x: Expression, y: Expression) -> Predicate:
    """Both values have the same dtype."""
    return dtype_of(x) == dtype_of(y)


def _dtype_is(match: Match, value: ir.Value, test: Callable[[ir.DataType], bool]) -> Truth:
    dtype = match.facts.types.of(value).dtype
    return None if dtype is None else test(dtype)


# -------------------------------------------------------------------- shapes


def static_shape(x: Expression) -> Predicate:
    """Every size of the value is a known number."""
    return About("static_shape", lambda m, v: m.static_shape(v) is not None or None, (x,))


def same_shape(x: Expression, y: Expression) -> Predicate:
    """Both values have the same shape in every run, symbolic sizes included."""
    return About("same_shape", _same_shape, (x, y))


def same_type(x: Expression, y: Expression) -> Predicate:
    """Same dtype and same shape in every run."""
    return same_dtype(x, y) & same_shape(x, y)


def broadcasts_to(x: Expression, y: Expression) -> Predicate:
    """Broadcasting ``x`` and ``y`` gives ``y``'s shape: rank and sizes of ``y`` stay."""
    return About("broadcasts_to", _broadcasts_to, (x, y))


def is_scalar(x: Expression) -> Predicate:
    """The value is 0-d."""
    return rank_of(x) == 0


def is_scalar_like(x: Expression) -> Predicate:
    """The value has exactly one element, whatever its rank."""
    return About("is_scalar_like", _is_scalar_like, (x,))


def _same_shape(match: Match, x: ir.Value, y: ir.Value) -> Truth:
    left, right = match.facts.types.of(x).shape, match.facts.types.of(y).shape
    if x is y:
        return True
    if left is None or right is None:
        return None
    if left == right:
        return True
    if len(left) != len(right):
        return False
    fixed = [(a, b) for a, b in zip(left, right, strict=True) if type(a) is type(b) is int]
    return False if any(a != b for a, b in fixed) else None


def _broadcasts_to(match: Match, x: ir.Value, y: ir.Value) -> Truth:
    small, large = match.facts.types.of(x).shape, match.facts.types.of(y).shape
    if small == () or x is y:
        return True
    if small is None or large is None:
        return None
    return shape_broadcasts_to(small, large)


def shape_broadcasts_to(small: Shape, large: Shape) -> Truth:
    """True if broadcasting the two shapes gives ``large``; None if a symbol decides."""
    if len(small) > len(large):
        return False
    unknown = False
    for a, b in zip(reversed(small), reversed(large), strict=False):
        truth = _dim_broadcasts_to(a, b)
        if truth is False:
            return False
        unknown = unknown or truth is None
    return None if unknown else True


def _dim_broadcasts_to(a: Number, b: Number) -> Truth:
    if a == 1 or a == b:
        return True
    return False if isinstance(a, int) and isinstance(b, int) else None


def _is_scalar_like(match: Match, value: ir.Value) -> Truth:
    shape = match.facts.types.of(value).shape
    if shape is None:
        return None
    if any(isinstance(d, int) and d != 1 for d in shape):
        return False
    return True if all(d == 1 for d in shape) else None


# -------------------------------------------------------------------- values and uses


def is_constant(x: Expression) -> Predicate:
    """The value is a compile-time constant."""
    return About("is_constant", lambda m, v: m.facts.known.is_constant(v), (x,))


def all_equal(x: Expression, number: float | Term) -> Predicate:
    """The value is a constant all of whose elements are the number (-0.0 is not 0.0)."""
    return _Uniform(x, number)


def single_use(x: Expression) -> Predicate:
    """One node input reads the value, and it is no output of the graph."""
    return About("single_use", lambda m, v: len(v._uses) == 1 and not v.is_graph_output(), (x,))


def is_graph_output(x: Expression) -> Predicate:
    """The value is an output of its graph."""
    return About("is_graph_output", lambda m, v: v.is_graph_output(), (x,))


# -------------------------------------------------------------------- terms on values


class _Of(Term):
    """A property of one matched value."""

    def __init__(self, name: str, read: Callable[[Match, ir.Value], Any], x: Any) -> None:
        self._name = name
        self._read = read
        self._x = x

    def evaluate(self, match: Match) -> Any:
        value = match[self._x]
        if value is None:
            return UNKNOWN
        found = self._read(match, value)
        return UNKNOWN if found is None else found

    def variables(self) -> Iterator[object]:
        yield self._x

    def __repr__(self) -> str:
        return f"{self._name}({self._x!r})"


def dtype_of(x: Expression) -> Term:
    """The dtype, an ``ir.DataType`` (equal to its ONNX number)."""
    return _Of("dtype_of", lambda m, v: m.facts.types.of(v).dtype, x)


def rank_of(x: Expression) -> Term:
    """The number of axes."""
    return _Of("rank_of", lambda m, v: m.facts.types.of(v).rank, x)


def shape_of(x: Expression) -> Term:
    """The shape: a tuple of int, with a symbol for a size that is not known."""
    return _Of("shape_of", lambda m, v: m.facts.types.of(v).shape, x)


def value_of(c: Expression) -> Term:
    """The elements of a small constant, a NumPy array."""
    return _Of("value_of", lambda m, v: m.facts.known.array(v), c)


def ints_of(c: Expression) -> Term:
    """The elements of a small constant (axes, a shape), a tuple of int."""
    return _Of("ints_of", _ints, c)


def size_of(x: Expression) -> Term:
    """The number of elements."""
    return Call(_product, (shape_of(x),))


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _ints(match: Match, value: ir.Value) -> tuple[int, ...] | None:
    array = match.facts.known.array(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return tuple(int(v) for v in array.ravel())
