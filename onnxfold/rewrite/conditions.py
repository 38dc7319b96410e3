"""Terms: conditions and computations that a rule records once and evaluates for each match."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx_ir as ir

from onnxfold.ir.symbolic import Expr, NotKnown


class OmittedInput(NotKnown):
    """A term refers to an omitted input or attribute, or to an alternative that did not match."""


class Recorded:
    """A symbol of a rule, or a term."""

    __slots__ = ()

    def evaluate(self, match: Any) -> Any:
        """Return the value of the symbol or term in a match (`onnxfold.rewrite.matcher.Match`).

        Raises:
            NotKnown: The value depends on an unknown fact or an omitted input. The arguments of the
                exception are a format string for the reason and the values for its fields. The
                exception has no arguments if the term calculates with symbolic sizes.
        """
        raise NotImplementedError

    def or_else(self, value: object) -> Term:
        """Return a term for the same value, or for ``value`` if an input is omitted.

        Omitted attributes and variables of alternatives that did not match count as omitted inputs.
        """
        return _OrElse(_unchanged, self, value)

    @property
    def is_omitted(self) -> Term:
        """Whether the input or attribute is omitted, or is only in an unmatched alternative."""
        return _OrElse(_is_omitted, self, True)


def _are_equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal.

    Raises:
        NotKnown: The result depends on symbolic sizes.
    """
    pairs: Any = ((left, right),)
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        if len(left) != len(right):
            return False
        pairs = zip(left, right, strict=True)
    unequal = [(a, b) for a, b in pairs if a is not b and a != b]
    symbolic = Expr, tuple, list  # a tuple or list may contain symbolic sizes
    if unequal and all(isinstance(a, symbolic) or isinstance(b, symbolic) for a, b in unequal):
        raise NotKnown("it depends on symbolic sizes whether {} and {} are equal", left, right)
    return not unequal


def _unchanged(value: object) -> object:
    return value


def _is_omitted(value: object) -> bool:
    return False


_CALL = 10
"""The precedence of a call: its operands need no parentheses."""
_PRIMARY = 9
"""The precedence of a property, method or element: only the first operand may need parentheses."""

_FORMS: dict[Callable[..., Any], tuple[str, int]] = {
    len: ("{}.length", _PRIMARY),
    math.prod: ("{}.product", _PRIMARY),
    min: ("{}.smallest", _PRIMARY),
    max: ("maximum(...)", _CALL),
    _unchanged: ("{}.or_else({})", _PRIMARY),
    _is_omitted: ("{}.is_omitted", _PRIMARY),
}
"""The text and the precedence of terms, by function. `Term.form` derives those of other functions.

A text has ``{}`` for each operand, and ``...`` for any number of further operands. The precedence
is that of the outermost operator in the text.
"""


def _recorded(function: Callable[..., Any]) -> Callable[..., Term]:
    """Return the method that records a call of a function."""

    @functools.wraps(function)
    def record(*operands: object) -> Term:
        return Term(function, *operands)

    return record


def _operator(
    function: Callable[..., Any], form: str, precedence: int, *, is_reflected: bool = False
) -> Callable[..., Term]:
    """Return the method that records an operator, and add the operator to `_FORMS`."""
    _FORMS[function] = form, precedence
    if is_reflected:
        return lambda *operands: Term(function, *operands[::-1])
    return _recorded(function)


def _junction(function: Callable[..., bool], form: str, precedence: int) -> Callable[..., Term]:
    """Return the method that joins two conditions by an operator, and add it to `_FORMS`."""
    _FORMS[function] = form, precedence

    def join(term: Term, other: object) -> Term:
        return Joined(function, term, other) if isinstance(other, Term) else _refuse(other)

    return join


class Term(functools.partial[Any], Recorded):
    """A function and its operands: terms, symbols, and plain values.

    Operators on terms make terms: ``x.rank == 2``, ``p[0] + 1``, ``~x.is_constant``. Conditions
    are joined by ``&`` and ``|``. Evaluating a term that depends on an unknown fact raises
    NotKnown. One operand of ``a | b`` or ``a & b`` may be unknown if the other operand determines
    the result.
    """

    __slots__ = ()

    def evaluate(self, match: Any) -> Any:
        """Return the result of the function for the values of the operands."""
        return self.func(*map(match.value_of, self.args))

    @property
    def form(self) -> tuple[str, int]:
        """The text and the precedence of the function, as in `_FORMS`."""
        name = f"{{}}.{self.func.__name__}"
        form = name if len(self.args) == 1 else f"{name}(...)"
        return _FORMS.get(self.func) or (form, _PRIMARY)

    def __repr__(self) -> str:
        form, precedence = self.form
        texts = []
        for k, operand in enumerate(self.args):
            inner = operand.form[1] if isinstance(operand, Term) else _PRIMARY
            binds_tighter = inner > precedence or (inner == precedence and k == 0)
            is_enclosed = precedence == _CALL or (precedence == _PRIMARY and k > 0)
            text = text_of(operand)
            needs_none = binds_tighter or is_enclosed or inner == _PRIMARY
            texts.append(text if needs_none else f"({text})")
        further = ["{}"] * (len(texts) - form.count("{}"))
        return form.replace("...", ", ".join(further)).format(*texts)

    __hash__ = object.__hash__

    @_recorded
    def is_in(value: Any, *choices: object) -> bool:
        """Return whether the value is equal to one of several."""
        return value in choices

    @property
    def length(self) -> Term:
        """The number of elements of a tuple."""
        return Term(len, self)

    @property
    def product(self) -> Term:
        """The product of the elements of a tuple."""
        return Term(math.prod, self)

    @property
    def smallest(self) -> Term:
        """The smallest element of a tuple."""
        return Term(min, self)

    @property
    @_recorded
    def is_identity(elements: Any) -> bool:
        """Whether a permutation is (0, 1, 2, ...)."""
        return list(elements) == list(range(len(elements)))

    @_recorded
    def permuted_by(elements: Any, permutation: Sequence[int]) -> tuple[Any, ...]:
        """Return the elements of a tuple at the indices of a permutation.

        Raises:
            NotKnown: The indices are not a permutation of the indices of the tuple.
        """
        if sorted(permutation) != list(range(len(elements))):
            raise NotKnown("{} is not a permutation of the elements of {}", permutation, elements)
        return tuple(elements[k] for k in permutation)

    @property
    @_recorded
    def inverse(permutation: Any) -> tuple[int, ...]:
        """The permutation that undoes this one."""
        return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))

    __eq__ = _operator(_are_equal, "{} == {}", 2)  # type: ignore[assignment]
    __ne__ = _operator(lambda a, b: not _are_equal(a, b), "{} != {}", 2)  # type: ignore[assignment]
    __lt__ = _operator(operator.lt, "{} < {}", 2)
    __le__ = _operator(operator.le, "{} <= {}", 2)
    __gt__ = _operator(operator.gt, "{} > {}", 2)
    __ge__ = _operator(operator.ge, "{} >= {}", 2)
    __or__ = _junction(any, "{} | {}", 3)
    __ror__ = __or__
    __and__ = _junction(all, "{} & {}", 4)
    __rand__ = __and__
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
    __invert__ = _operator(operator.not_, "~{}", 8)
    __neg__ = _operator(operator.neg, "-{}", 8)
    __getitem__ = _operator(operator.getitem, "{}[{}]", _PRIMARY)
    __abs__ = _operator(abs, "abs({})", _CALL)

    def _refuse_use(self, *arguments: object) -> NoReturn:
        raise TypeError(
            f"{self!r} is recorded here and evaluated for each match: join conditions by & and |,"
            " negate by ~, write x.is_in(...) for in, x.rank without (), two comparisons instead of"
            " a chain, and a @computed function for anything else"
        )

    __bool__ = _refuse_use
    # These methods are called by len(x.shape), functions of NumPy, x.rank() and range(x.rank).
    __len__ = _refuse_use
    __array__ = _refuse_use
    __call__ = _refuse_use
    __index__ = _refuse_use

    def __iter__(self) -> Iterator[Unpacked]:
        return iter((Unpacked(self),))


class Unpacked:
    """The elements of a term that is unpacked into a tuple, as in ``(1, *x.shape[2:])``."""

    def __init__(self, term: Term) -> None:
        self.term = term

    def __repr__(self) -> str:
        return f"*{self.term!r}"


class Joined(Term):
    """Conditions joined by & or |.

    An unknown operand has no effect if another operand determines the result.
    """

    __slots__ = ()
    __hash__ = Term.__hash__

    # & and | bind more tightly than comparisons
    def _refuse_comparison(self, other: object) -> NoReturn:
        raise TypeError(f"{self!r} is compared: put its comparisons in parentheses")

    __eq__ = _refuse_comparison
    __ne__ = _refuse_comparison
    __lt__ = _refuse_comparison
    __le__ = _refuse_comparison
    __gt__ = _refuse_comparison
    __ge__ = _refuse_comparison

    def evaluate(self, match: Any) -> bool:
        """Return whether the conditions hold.

        Raises:
            NotKnown: The result depends on an unknown condition.
        """
        deciding_value = self.func is any
        unknown = None
        for operand in self.args:
            try:
                if bool(match.value_of(operand)) is deciding_value:
                    return deciding_value
            except NotKnown as error:
                # the exception is not stored, because its traceback refers to this frame
                unknown = type(error), error.args
        if unknown is not None:
            error_type, arguments = unknown
            raise error_type(*arguments)
        return not deciding_value


class _Computed(Term):
    """A call of a `computed` function."""

    __slots__ = ()

    def __new__(cls, func: Callable[..., Any], *args: object, **keywords: object) -> _Computed:
        signature = inspect.signature(func)
        try:
            signature.bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{func.__name__}{signature}: {error}") from error
        return super().__new__(cls, func, *args, **keywords)

    def evaluate(self, match: Any) -> Any:
        value = super().evaluate(match)
        if value is None:
            raise NotKnown("{} returned no value", self.func.__name__)
        return value

    @property
    def form(self) -> tuple[str, int]:
        return f"{self.func.__name__}(...)", _CALL


class Attribute(Term):
    """A variable for the value of an attribute: int, float, str, or a tuple of them."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Attribute:
        """Return a variable with a name."""
        variable = super().__new__(cls, plain_number)
        variable.name = name
        return variable

    def evaluate(self, match: Any) -> Any:
        """Return the value of the attribute in a match.

        Raises:
            OmittedInput: The attribute is omitted.
        """
        content = match.bound(self)
        if content is None:
            raise OmittedInput("the attribute {} is omitted", self)
        return plain_number(content)

    @property
    def form(self) -> tuple[str, int]:
        """The name of the variable, with the precedence of a property."""
        return self.name, _PRIMARY


def plain_number(value: Any) -> Any:
    """Return the value of an attribute, in which a float32 becomes its shortest decimal number.

    For example, 0.1 replaces the float32 number that is nearest to 0.1. Tuples do not change.
    """
    return float(str(np.float32(value))) if type(value) is float else value


class _OrElse(Term):
    """A function of the first operand, or the second operand if the first one is omitted."""

    __slots__ = ()

    def evaluate(self, match: Any) -> Any:
        try:
            value = match.value_of(self.args[0])
        except OmittedInput:
            return match.value_of(self.args[1])
        return self.func(value)


def computed(function: Callable[..., Any]) -> Callable[..., Term]:
    """Make a function of matched values callable in rules.

    The function is called for each match. Its arguments are a `Matched` for each value, and plain
    values for attributes and terms. For several inputs, the argument is a tuple with a `Matched`
    for each input or None. If the function returns None, the result is unknown.
    """
    return functools.update_wrapper(functools.partial(_Computed, function), function)


def maximum(*terms: object) -> Term:
    """Return a term for the largest of several values."""
    return Term(max, *terms)


class Where(list[Term]):
    """The conditions of a rule, as conjuncts."""


class Inexact(NamedTuple):
    """The condition under which a match of a rule is inexact."""

    condition: Term


def where(*conditions: object) -> Where:
    """Return the conditions of a rule, which applies only if all of them are true."""
    conjuncts = Where()
    for condition in conditions:
        if isinstance(condition, Joined) and condition.func is all:
            conjuncts += where(*condition.args)
        else:
            conjuncts.append(condition if isinstance(condition, Term) else _refuse(condition))
    return conjuncts


def inexact_if(condition: object) -> Inexact:
    """Return the condition under which results may differ in their last bits.

    A match is inexact unless the condition is certainly false. An inexact match is rewritten at
    level 2 only.
    """
    return Inexact(condition if isinstance(condition, Term) else _refuse(condition))


def _refuse(condition: object) -> NoReturn:
    text = "a function" if callable(condition) else text_of(condition)
    hint = "compare properties of values, as in (x.rank == 2) & x.same_shape(y)"
    raise TypeError(f"{text} is not a condition: {hint}")


def symbols_of(*terms: Any) -> Iterator[Recorded]:
    """Yield the symbols in terms.

    Raises:
        TypeError: A term has arguments by name.
    """
    pending = [*terms]
    while pending:
        term = pending.pop()
        if isinstance(term, Term) and term.keywords:
            raise TypeError(f"{term!r} takes no arguments by name: write them in order")
        if isinstance(term, Term) and term.args:
            pending.extend(term.args)
        elif isinstance(term, Recorded):
            yield term
        elif isinstance(term, (tuple, list)):
            pending.extend(term)
        elif isinstance(term, slice):
            pending.extend((term.start, term.stop, term.step))
        elif isinstance(term, Unpacked):
            pending.append(term.term)


def text_of(content: Any) -> str:
    """Return the text of a term, symbol or plain value in a rule."""
    if isinstance(content, ir.DataType):
        return content.name
    if isinstance(content, slice):
        parts = ["" if part is None else text_of(part) for part in (content.start, content.stop)]
        return ":".join(parts if content.step is None else [*parts, text_of(content.step)])
    if isinstance(content, (tuple, list)):
        inner = ", ".join(map(text_of, content))
        return f"({inner},)" if len(content) == 1 else f"({inner})"
    name = getattr(content, "name", None)
    return name if name and isinstance(content, Recorded) else repr(content)


def fits_type(value: Any, kind: str) -> bool:
    """Return whether a value in a rule fits the type of an attribute, such as "INTS".

    Terms and symbols in the value fit any type.
    """
    is_text = isinstance(value, (str, bytes))
    if value is None or isinstance(value, (Recorded, Unpacked)):
        return True
    if kind in ("INTS", "FLOATS", "STRINGS"):
        return np.iterable(value) and not is_text and all(fits_type(v, kind[:-1]) for v in value)
    if kind in ("INT", "FLOAT"):
        return isinstance(value, numbers.Real) and (kind == "FLOAT" or value % 1 == 0)
    return is_text or kind != "STRING"
