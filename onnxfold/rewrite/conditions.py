"""Terms: conditions and computations of a rule, recorded once and evaluated for each match."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic import Expr, NotKnown


class NotGiven(NotKnown):
    """A term refers to an omitted input or to an alternative that did not match."""


class Recorded:
    """A symbol of a rule, or a term."""

    __slots__ = ()

    def evaluate(self, match: Any) -> Any:
        """Return the value in a `onnxfold.rewrite.matcher.Match`.

        Raises:
            NotKnown: it depends on what is not known.
        """
        raise NotImplementedError

    def or_else(self, value: object) -> Term:
        """Return the term, or a value where it needs an omitted input."""
        return _IfGiven(lambda found: found, (self, value), "{}.or_else({})")

    @property
    def is_omitted(self) -> Term:
        """Whether the input is omitted, or the variable belongs to another alternative."""
        return _IfGiven(lambda found: False, (self, True), "{}.is_omitted")


def _are_equal(left: Any, right: Any) -> bool:
    """Compare values that may hold symbolic sizes; raise NotKnown if these decide."""
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        if len(left) != len(right):
            return False
        answers: list[bool | None] = []
        for one, other in zip(left, right, strict=True):
            try:
                answers.append(_are_equal(one, other))
            except NotKnown:
                answers.append(None)
        if None in answers and False not in answers:
            raise NotKnown
        return all(answers)
    if left is not right and left != right and (isinstance(left, Expr) or isinstance(right, Expr)):
        raise NotKnown
    return bool(left == right)


def _operator(
    function: Callable[[Any, Any], Any], form: str, level: int, *, is_reflected: bool = False
) -> Callable[[Term, object], Term]:
    """Return the method that records an operator of two operands."""

    def record_operator(term: Term, other: object) -> Term:
        operands = (other, term) if is_reflected else (term, other)
        return Term(function, operands, form, level)

    return record_operator


class Term(Recorded):
    """A function of what a rule matches.

    Operators on terms make terms: ``x.rank == 2``, ``p[0] + 1``, ``~x.is_constant``. Conditions
    are joined by ``&`` and ``|``. Evaluating one that needs an unknown fact raises NotKnown; of
    ``a | b`` and ``a & b`` the other operand may decide alone.

    Args:
        function: Computes the value from the values of the operands.
        operands: Terms, symbols, and plain values.
        form: The text, with ``{}`` for each operand, and ``...`` for any number of further ones.
        level: The precedence of the outermost operator in the text.
    """

    __slots__ = ("form", "function", "level", "operands")

    def __init__(
        self, function: Callable[..., Any], operands: tuple[Any, ...], form: str, level: int = 9
    ) -> None:
        self.function = function
        self.operands = operands
        self.form = form
        self.level = level

    def evaluate(self, match: Any) -> Any:
        """Apply the function to the values of the operands."""
        value_of = match.value_of
        return self.function(*[value_of(operand) for operand in self.operands])

    def __repr__(self) -> str:
        texts = []
        for k, operand in enumerate(self.operands):
            own = operand.level if isinstance(operand, Term) else 9
            is_tight = own > self.level or (own == self.level and k == 0)
            needs_none = self.level == _CALL or own == 9 or (self.level == 9 and k)
            texts.append(text_of(operand) if needs_none or is_tight else f"({text_of(operand)})")
        further = ["{}"] * (len(texts) - self.form.count("{}"))
        return self.form.replace("...", ", ".join(further)).format(*texts)

    __hash__ = object.__hash__

    def is_in(self, *choices: object) -> Term:
        """Return whether the value is one of several."""
        return Term(lambda value, *those: value in those, (self, *choices), "{}.is_in(...)")

    @property
    def length(self) -> Term:
        """The number of elements of a tuple."""
        return Term(len, (self,), "{}.length")

    @property
    def product(self) -> Term:
        """The product of the elements of a tuple."""
        return Term(math.prod, (self,), "{}.product")

    @property
    def smallest(self) -> Term:
        """The smallest element of a tuple."""
        return Term(min, (self,), "{}.smallest")

    @property
    def is_identity(self) -> Term:
        """Whether a permutation is (0, 1, 2, ...)."""
        return Term(lambda t: list(t) == list(range(len(t))), (self,), "{}.is_identity")

    def permuted_by(self, permutation: object) -> Term:
        """Return the elements of a tuple at the indices of a permutation."""
        return Term(_permuted, (self, permutation), "{}.permuted_by({})")

    __eq__ = _operator(_are_equal, "{} == {}", 2)  # type: ignore[assignment]
    __ne__ = _operator(lambda a, b: not _are_equal(a, b), "{} != {}", 2)  # type: ignore[assignment]
    __lt__ = _operator(operator.lt, "{} < {}", 2)
    __le__ = _operator(operator.le, "{} <= {}", 2)
    __gt__ = _operator(operator.gt, "{} > {}", 2)
    __ge__ = _operator(operator.ge, "{} >= {}", 2)
    __add__ = _operator(operator.add, "{} + {}", 6)
    __radd__ = _operator(operator.add, "{} + {}", 6, is_reflected=True)
    __sub__ = _operator(operator.sub, "{} - {}", 6)
    __rsub__ = _operator(operator.sub, "{} - {}", 6, is_reflected=True)
    __mul__ = _operator(operator.mul, "{} * {}", 7)
    __rmul__ = _operator(operator.mul, "{} * {}", 7, is_reflected=True)
    __truediv__ = _operator(operator.truediv, "{} / {}", 7)
    __rtruediv__ = _operator(operator.truediv, "{} / {}", 7, is_reflected=True)
    __floordiv__ = _operator(operator.floordiv, "{} // {}", 7)
    __mod__ = _operator(operator.mod, "{} % {}", 7)

    def __or__(self, other: object) -> Term:
        return _Joined(any, (self, _as_condition(other)), "{} | {}", 3)

    def __and__(self, other: object) -> Term:
        return _Joined(all, (self, _as_condition(other)), "{} & {}", 4)

    def __invert__(self) -> Term:
        return Term(operator.not_, (self,), "~{}", 8)

    def __neg__(self) -> Term:
        return Term(operator.neg, (self,), "-{}", 8)

    def __getitem__(self, place: object) -> Term:
        return Term(operator.getitem, (self, place), "{}[{}]")

    def __abs__(self) -> Term:
        return Term(abs, (self,), "abs({})", _CALL)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is recorded here and evaluated for each match: join conditions by & and |,"
            " negate by ~, write x.is_in(...) for in, and two comparisons instead of a chain;"
            " what cannot be said so is a @computed function"
        )

    __len__ = __array__ = __bool__  # also for len(x.shape) and functions of NumPy

    def __iter__(self) -> Iterator[Unpacked]:
        yield Unpacked(self)


class Unpacked:
    """The elements of a term in a tuple: ``(1, *x.shape[2:])``."""

    def __init__(self, term: Term) -> None:
        self.term = term

    def __repr__(self) -> str:
        return f"*{self.term!r}"


_CALL = 10
"""The level of a call: its operands need no parentheses."""


class _Joined(Term):
    """Conditions joined by & or |: unknown operands do not matter where another one decides."""

    __slots__ = ()

    def evaluate(self, match: Any) -> bool:
        decides, unknown = self.function is any, None
        for operand in self.operands:
            try:
                if bool(match.value_of(operand)) is decides:
                    return decides
            except NotKnown as reason:
                unknown = type(reason)  # not the exception: its traceback holds this frame
        if unknown is not None:
            raise unknown
        return not decides


class _Computed(Term):
    __slots__ = ()

    def evaluate(self, match: Any) -> Any:
        found = super().evaluate(match)
        if found is None:
            raise NotKnown
        return found


class Attribute(Term):
    """Stands for the value of an attribute: int, float, str, or a tuple of them."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(plain_number, (), name)
        self.name = name

    def evaluate(self, match: Any) -> Any:
        """Return the value that the attribute has in a match."""
        content = match.bound(self)
        if content is None:
            raise NotGiven
        return plain_number(content)


def plain_number(value: Any) -> Any:
    """Return a float attribute as it was written: 0.1 for what float32 makes of it."""
    return float(str(np.float32(value))) if type(value) is float else value


class _IfGiven(Term):
    """A function of the first operand; the second one if an input is omitted."""

    __slots__ = ()

    def evaluate(self, match: Any) -> Any:
        try:
            found = match.value_of(self.operands[0])
        except NotGiven:
            return match.value_of(self.operands[1])
        return self.function(found)


def _permuted(elements: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    if sorted(places) != list(range(len(elements))):
        raise NotKnown  # it is no permutation
    return tuple(elements[k] for k in places)


# -------------------------------------------------------------------- words


def computed(function: Callable[..., Any]) -> Callable[..., Term]:
    """Make a function of matched values callable in rules.

    It is called for each match. Its arguments are a `Matched` for each value, a tuple of them for
    several inputs, and numbers or tuples for attributes and terms. A function that returns None
    ends the match.
    """

    @functools.wraps(function)
    def record(*operands: Any) -> Term:
        return _Computed(function, operands, f"{function.__name__}(...)", _CALL)

    return record


def maximum(*terms: object) -> Term:
    """Return the largest of several terms."""
    return Term(max, terms, "maximum(...)", _CALL)


class Where(list[Term]):
    """The conditions of a rule, as conjuncts."""


class Inexact(NamedTuple):
    """The condition under which a match of a rule is inexact."""

    condition: Term


def where(*conditions: object) -> Where:
    """Return the conditions of a rule: all must be true for it to apply."""
    return Where(itertools.chain.from_iterable(map(_conjuncts, conditions)))


def inexact_if(condition: object) -> Inexact:
    """Return the condition under which results may differ in their last bits.

    Unless it is certainly false, a match counts as inexact and applies at level 2 only.
    """
    return Inexact(_as_condition(condition))


def _conjuncts(condition: object) -> list[Term]:
    if isinstance(condition, _Joined) and condition.function is all:
        return [each for operand in condition.operands for each in _conjuncts(operand)]
    return [_as_condition(condition)]


def _as_condition(condition: object) -> Term:
    if isinstance(condition, Term):
        return condition
    hint = ": compare what is known of values, as in x.rank == 2"
    raise TypeError(f"{text_of(condition)} is no condition{hint}")


def symbols_of(*things: Any) -> Iterator[Recorded]:
    """Yield the symbols in terms."""
    pending = [*things]
    while pending:
        thing = pending.pop()
        if isinstance(thing, Term) and thing.operands:
            pending.extend(thing.operands)
        elif isinstance(thing, Recorded):
            yield thing
        elif isinstance(thing, (tuple, list)):
            pending.extend(thing)
        elif isinstance(thing, slice):
            pending.extend((thing.start, thing.stop, thing.step))
        elif isinstance(thing, Unpacked):
            pending.append(thing.term)


def text_of(thing: Any) -> str:
    """Return the text of a term, symbol or plain value in a rule."""
    if isinstance(thing, ir.DataType):
        return thing.name
    if isinstance(thing, slice):
        parts = ["" if part is None else text_of(part) for part in (thing.start, thing.stop)]
        return ":".join(parts if thing.step is None else [*parts, text_of(thing.step)])
    if isinstance(thing, (tuple, list)):
        inner = ", ".join(map(text_of, thing))
        return f"({inner},)" if len(thing) == 1 else f"({inner})"
    name = getattr(thing, "name", None)
    return name if name and isinstance(thing, Recorded) else repr(thing)
